"""Media types and content codings, as RFC 9110 says."""

import asyncio
import gzip
import zlib

import pytest

from packbert.service.errors import Invalid, ServiceError, TooLarge, Unsupported
from packbert.service.http.headers import accepts_coding, choose_media_type, decode_body

JSON, NPY = "application/json", "application/x-npy"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        (NPY, NPY),
        ("Application/X-NPY", NPY),
        (f"{NPY}, {JSON}", NPY),
        (f"{JSON}, {NPY}", JSON),
        (f"{NPY}, */*", NPY),
        (f"{NPY}, {JSON};q=0.5", NPY),
        (f"{NPY};q=0.5, {JSON}", JSON),
        (f"{NPY};q=0, */*", JSON),
        ("application/*", JSON),
        ("text/html", JSON),
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


def test_a_body_of_very_many_members_is_refused() -> None:
    body = gzip.compress(b"{}") + gzip.compress(b"") * 255
    assert asyncio.run(decode_body(body, b"gzip", 1000)) == b"{}"
    with pytest.raises(TooLarge, match="more than 256 gzip members: send it as one"):
        asyncio.run(decode_body(body + gzip.compress(b"") * 100_000, b"gzip", 1000))


@pytest.mark.parametrize(
    ("body", "coding", "error"),
    [
        (b"{}", b"gzip", Invalid),
        (gzip.compress(b"{}" * 100, mtime=0)[:-9], b"gzip", Invalid),
        (gzip.compress(b"{}", mtime=0) + b"more", b"gzip", Invalid),
        (zlib.compress(b"{}"), b"deflate", Unsupported),
        (b"{}", b"br", Unsupported),
        (b"{}", b"gzip, br", Unsupported),
    ],
)
def test_a_damaged_or_unknown_coding_is_named(body: bytes, coding: bytes, error: type[ServiceError]) -> None:
    with pytest.raises(error):
        asyncio.run(decode_body(body, coding, 1000))


def test_a_body_without_coding_is_the_same_object() -> None:
    body = b"{}"
    assert asyncio.run(decode_body(body, b"identity", 1000)) is body
