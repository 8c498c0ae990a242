"""Content coding: gzip of request bodies, within the limit of their size, and of responses."""

import asyncio
import gzip
import zlib
from collections.abc import Iterator
from functools import partial

from service.errors import Invalid, TooLarge, Unsupported
from service.http.limits.body import on_thread

GZIP_LEVEL = 1  # 2.1 times smaller for vectors in JSON; higher levels take several times as long for a tenth less
STEP_BYTES = 2**18  # of gzip: 30 ms where it is made to be slow; others' bodies take turns
MAX_MEMBERS = 256  # each costs as much as some KB; bgzip has one for 64 KiB
GZIP_WINDOW = 16 + zlib.MAX_WBITS  # a gzip header and trailer, not zlib's


async def decode_body(body: bytes, coding: bytes, limit: int) -> bytes:
    """The body without its coding, at most `limit` bytes.

    Raises Unsupported for a coding other than gzip, Invalid for a body that is not gzip, TooLarge.
    """
    name = coding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in (b"gzip", b"x-gzip"):
        shown = name.decode("latin-1")[:40]
        raise Unsupported(f"content-encoding {shown!r} is not supported: send gzip, or the body as it is")
    parts, steps = [], _gunzip(body, limit)
    while (part := await on_thread(partial(next, steps, None))) is not None:
        parts.append(part)
    return b"".join(parts)


def _gunzip(body: bytes, limit: int) -> Iterator[bytes]:
    """The content, a step of the body at a time."""
    member, members, left = zlib.decompressobj(GZIP_WINDOW), 1, limit
    try:
        for start in range(0, len(body), STEP_BYTES):
            rest = body[start : start + STEP_BYTES]
            while rest:
                if member.eof:
                    member, members = zlib.decompressobj(GZIP_WINDOW), members + 1
                part = member.decompress(rest, left + 1)
                left -= len(part)
                if left < 0:
                    size = f"the body has more than {limit} bytes without its gzip coding; at most {limit} are accepted"
                    raise TooLarge(f"{size} (BERT_MAX_BODY_BYTES)", code="body_too_large")
                if members > MAX_MEMBERS:
                    raise TooLarge(f"the body has more than {MAX_MEMBERS} gzip members: send it as one")
                rest = member.unused_data
                yield part
    except zlib.error as error:
        raise Invalid(f"the body is not gzip, as content-encoding says: {error}", code="encoding") from None
    if not member.eof:
        raise Invalid("the body is not complete gzip, as content-encoding says", code="encoding")


async def encode_response(content: bytes | bytearray) -> bytes:
    return await asyncio.to_thread(gzip.compress, content, GZIP_LEVEL, mtime=0)
