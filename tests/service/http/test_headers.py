"""Keys in several headers and from a file that may change; media types and content codings, as RFC 9110 says."""

import asyncio
import gzip
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from packbert.service.errors import TooLarge, Unauthorized
from packbert.service.http import headers as api_keys
from packbert.service.http.headers import ApiKeys, accepts_coding, choose_media_type, decode_body
from packbert.service.settings import Settings


def make_keys(**settings: Any) -> ApiKeys:
    return ApiKeys(Settings.model_validate({"model": "."} | settings))


def admits(keys: ApiKeys, key: str) -> bool:
    try:
        keys.check({b"authorization": f"Bearer {key}".encode()})
    except Unauthorized:
        return False
    return True


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n two \n", "utf-8")
    keys = make_keys(api_key="own", api_key_file=path)
    keys.read_file()
    assert [admits(keys, key) for key in ("own", "one", "two", "three")] == [True, True, True, False]
    path.write_text("three\n", "utf-8")
    keys.read_file()
    assert [admits(keys, key) for key in ("own", "one", "three")] == [True, False, True]


def test_the_file_is_watched_on_a_thread_that_ends_with_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "CHECK_SECONDS", 0.001)
    path, seen = tmp_path / "keys", threading.Event()
    path.write_text("one\n", "utf-8")

    class Watched(ApiKeys):
        def read_file(self) -> None:
            super().read_file()
            if admits(self, "two"):
                seen.set()

    keys = Watched(Settings.model_validate({"model": ".", "api_key_file": path}))
    keys.open()
    assert admits(keys, "one")
    path.write_text("two\n", "utf-8")
    assert seen.wait(60)
    (thread,) = [one for one in threading.enumerate() if one.name == "api keys"]
    keys.close()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("fault", ["gone", "empty", "no line", "not UTF-8", "control", "fifo", "endless", "folder"])
def test_a_file_that_cannot_be_used_keeps_the_keys_and_opens_nothing(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n", "utf-8")
    keys = make_keys(api_key_file=path)
    keys.read_file()
    path.unlink()
    contents = {"empty": b"", "no line": b"\n", "not UTF-8": b"two\n\xff\xfe\n", "control": b"two\nthr\x00ee\n"}
    if fault in contents:
        path.write_bytes(contents[fault])
    elif fault == "fifo":
        os.mkfifo(path)
    elif fault == "endless":
        path.symlink_to("/dev/zero")
    elif fault == "folder":
        path.mkdir()
    keys.read_file()
    assert admits(keys, "one")
    assert not admits(keys, "two")
    assert not admits(keys, "")
    assert keys.required


JSON, NPY = "application/json", "application/x-npy"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("*/*", JSON),
        ("Application/X-NPY", NPY),
        (f"{NPY}, {JSON}", NPY),
        (f"{JSON}, {NPY}", JSON),
        (f"{NPY}, */*", NPY),
        (f"{NPY};q=0, */*", JSON),
        ("application/*", JSON),
        (f"{NPY};q=many, {JSON};q=0.1", JSON),
    ],
)
def test_the_media_type_with_the_highest_weight_is_chosen(accept: str, chosen: str) -> None:
    assert choose_media_type(accept, (JSON, NPY)) == chosen


@pytest.mark.parametrize(
    ("header", "accepted"),
    [("", False), ("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("*", True), ("*, gzip;q=0", False)],
)
def test_a_coding_is_used_only_where_it_is_accepted(header: str, accepted: bool) -> None:
    assert accepts_coding(header, "gzip") is accepted


@pytest.mark.parametrize("size", [10, 100_000])
def test_gzip_bodies_are_read_also_of_several_members(size: int) -> None:
    body = b"x" * size
    packed = gzip.compress(body[: size // 2]) + gzip.compress(body[size // 2 :])
    assert asyncio.run(decode_body(packed, b"GZIP", 100_000)) == body


@pytest.mark.parametrize("limit", [1000, 1_000_000])
def test_a_body_that_inflates_over_the_limit_is_refused(limit: int) -> None:
    packed = gzip.compress(b"0" * (limit + 1), 9)
    with pytest.raises(TooLarge, match=f"more than {limit} bytes"):
        asyncio.run(decode_body(packed, b"gzip", limit))
