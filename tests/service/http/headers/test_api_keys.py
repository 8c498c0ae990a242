"""Keys: several, in several headers, from a file that may change."""

from pathlib import Path
from typing import Any

import pytest

from service.errors import Unauthorized
from service.http.headers.api_keys import CHECK_SECONDS, ApiKeys
from service.settings import Settings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make_keys(clock: Clock | None = None, **settings: Any) -> ApiKeys:
    return ApiKeys(Settings.model_validate({"artifact": "."} | settings), clock or Clock())


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


def test_a_changed_file_is_read_again_after_a_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys", Clock()
    path.write_text("one\n\n two \n", "utf-8")
    keys = make_keys(clock, api_key="own", api_key_file=path)
    assert [admits(keys, key) for key in ("own", "one", "two", "three")] == [True, True, True, False]
    path.write_text("three\n", "utf-8")
    assert admits(keys, "one")  # the file is looked at once a second
    clock.now += CHECK_SECONDS
    assert [admits(keys, key) for key in ("own", "one", "three")] == [True, False, True]


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_file_that_is_gone_or_empty_keeps_the_keys_and_opens_nothing(tmp_path: Path, content: str | None) -> None:
    path, clock = tmp_path / "keys", Clock()
    path.write_text("one\n", "utf-8")
    keys = make_keys(clock, api_key_file=path)
    assert admits(keys, "one")
    path.unlink()
    if content is not None:
        path.write_text(content, "utf-8")
    clock.now += CHECK_SECONDS
    assert admits(keys, "one")
    assert not admits(keys, "")
    assert keys.required
