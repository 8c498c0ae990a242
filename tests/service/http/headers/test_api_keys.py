"""Keys: several, in several headers, from a file that may change."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from packbert.service.errors import Unauthorized
from packbert.service.http import headers as api_keys
from packbert.service.http.headers import ApiKeys
from packbert.service.settings import Settings


def make_keys(**settings: Any) -> ApiKeys:
    return ApiKeys(Settings.model_validate({"model": "."} | settings))


def admits(keys: ApiKeys, key: str, header: bytes = b"authorization") -> bool:
    value = f"Bearer {key}" if header == b"authorization" else key
    try:
        keys.check({header: value.encode()})
    except Unauthorized:
        return False
    return True


def test_each_of_several_keys_is_valid_and_their_list_is_not() -> None:
    keys = make_keys(api_key="first, second")
    assert admits(keys, "first")
    assert admits(keys, "second")
    assert not admits(keys, "first, second")
    assert not admits(keys, "")


@pytest.mark.parametrize("header", [b"x-api-key", b"api-key"])
def test_a_key_may_come_in_the_headers_of_other_servers(header: bytes) -> None:
    keys = make_keys(api_key="secret")
    assert admits(keys, "secret", header)
    assert not admits(keys, "secre", header)
    assert not admits(keys, "Bearer secret", header)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_the_scheme_has_no_case(scheme: str) -> None:
    keys = make_keys(api_key="secret")
    keys.check({b"authorization": f"{scheme} secret".encode()})


@pytest.mark.parametrize("value", ["secret", "Basic secret", "Bearersecret", "Token Bearer secret"])
def test_another_scheme_is_refused(value: str) -> None:
    with pytest.raises(Unauthorized):
        make_keys(api_key="secret").check({b"authorization": value.encode()})


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
