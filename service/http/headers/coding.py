"""Content coding: gzip of request bodies, within the limit of their size, and of responses."""

import asyncio
import gzip
import zlib

from service.errors import Invalid, TooLarge, Unsupported

GZIP_LEVEL = 1  # 2.1 times smaller for vectors in JSON; higher levels take several times as long for a tenth less
INLINE_BYTES = 16_384  # decoding more than this takes a millisecond or more, on a thread
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
    if len(body) <= INLINE_BYTES and limit <= INLINE_BYTES:
        return _gunzip(body, limit)
    return await asyncio.to_thread(_gunzip, body, limit)


def _gunzip(body: bytes, limit: int) -> bytes:
    parts, left = [], limit
    try:
        while body:
            member = zlib.decompressobj(GZIP_WINDOW)
            parts.append(member.decompress(body, left + 1))
            left -= len(parts[-1])
            if left < 0:
                message = f"the body has more than {limit} bytes without its gzip coding; at most {limit} are accepted"
                raise TooLarge(f"{message} (BERT_MAX_BODY_BYTES)", code="body_too_large")
            if not member.eof:
                raise Invalid("the body is not complete gzip, as content-encoding says", code="encoding")
            body = member.unused_data
    except zlib.error as error:
        raise Invalid(f"the body is not gzip, as content-encoding says: {error}", code="encoding") from None
    return b"".join(parts)


async def encode_response(content: bytes | bytearray) -> bytes:
    return await asyncio.to_thread(gzip.compress, content, GZIP_LEVEL, mtime=0)
