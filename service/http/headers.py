"""What request headers ask for: content codings, media types, keys."""

import hmac
import logging
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ..errors import Invalid, TooLarge, Unauthorized, Unsupported
from ..settings import Settings, SettingsError, read_key_file
from .body import on_thread

STEP_BYTES = 2**18  # of gzip: 30 ms if it is made to be slow; others' bodies take turns
MAX_MEMBERS = 256  # each costs as much as some KB; bgzip writes a member for 64 KiB
GZIP_WINDOW = 16 + zlib.MAX_WBITS  # a gzip header and trailer, not zlib's
CHECK_SECONDS = 1.0  # between two looks at the file of keys
BEARER = re.compile(rb"bearer +", re.IGNORECASE)  # RFC 9110, section 11.1: the scheme has no case
KEY_HEADERS = (b"x-api-key", b"api-key")
REFUSAL = "this server requires `Authorization: Bearer KEY` (or x-api-key); the key is missing or wrong"
log = logging.getLogger("service")


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
                    raise TooLarge(f"{size} (BERT_MAX_BODY_BYTES): split it", code="body_too_large")
                if members > MAX_MEMBERS:
                    raise TooLarge(f"the body has more than {MAX_MEMBERS} gzip members: send it as one")
                rest = member.unused_data
                yield part
    except zlib.error as error:
        raise Invalid(f"the body is not gzip, as content-encoding says: {error}", code="encoding") from None
    if not member.eof:
        raise Invalid("the body is not complete gzip, as content-encoding says", code="encoding")


def choose_media_type(accept: str, offered: Sequence[str]) -> str:
    """The offered type with the highest weight; of several, that which the client names first.

    The first of `offered` if none is acceptable.
    """
    stated = _parse(accept)

    def weight(media_type: str) -> float:
        ranges = (media_type, media_type.split("/")[0] + "/*", "*/*")
        return next((stated[name] for name in ranges if name in stated), 0.0)

    # `application/x-npy, */*` means the type it names
    named = [name for name in stated if name in offered and stated[name]]
    return max(named or offered, key=weight)


def accepts_coding(accept_encoding: str, coding: str) -> bool:
    """Whether a response may have this content coding; False if the header is empty."""
    stated = _parse(accept_encoding)
    return stated.get(coding, stated.get("*", 0.0)) > 0


def choose_language(accept_language: str, offered: Sequence[str]) -> str:
    """The offered language with the highest weight; of several, that which the client names first.

    `zh-Hant-TW` asks for `zh` too. The first of `offered` if none is acceptable.
    """
    weights: dict[str, float] = {}
    for tag, weight in _parse(accept_language).items():
        language = tag.split("-")[0]
        weights[language] = max(weight, weights.get(language, 0.0))
    named = [language for language in weights if language in offered and weights[language]]
    return max(named or offered, key=lambda name: weights.get(name, weights.get("*", 0.0)))


def _parse(header: str) -> dict[str, float]:
    """The weight of each member, by its name in lower case; a weight that is no number counts as 0."""
    weights = {}
    for member in header.split(","):
        name, *parameters = (part.strip().lower() for part in member.split(";"))
        stated = [value.strip() for key, _, value in (each.partition("=") for each in parameters) if key.strip() == "q"]
        if name:
            weights[name] = _number(stated[0]) if stated else 1.0
    return weights


def _number(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


class ApiKeys:
    """The valid keys. The keys of BERT_API_KEY_FILE are known after `open`; `required` is false if there are none."""

    def __init__(self, settings: Settings) -> None:
        self._file = settings.api_key_file
        self._own = [key.encode() for key in settings.api_keys]
        self._from_file: list[bytes] = []
        self._read: object = None  # what identifies the content of the file that was read
        self._fault = ""  # of the last look at the file
        self._closed = threading.Event()
        self.required = bool(self._own or self._file)

    def open(self) -> None:
        """Reads the file, now and once a second on a thread of its own: a disk that hangs holds up no request."""
        if self._file is not None:
            self.read_file()
            threading.Thread(target=self._watch, daemon=True, name="api keys").start()

    def close(self) -> None:
        self._closed.set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises Unauthorized for a missing or wrong key; the time of the comparison does not depend on the key."""
        stated = find_key(headers)
        valid = [hmac.compare_digest(stated, key) for key in (*self._own, *self._from_file)]
        if not any(valid):
            raise Unauthorized(REFUSAL)

    def _watch(self) -> None:
        while not self._closed.wait(CHECK_SECONDS):
            self.read_file()

    def read_file(self) -> None:
        """Reads the keys if the file has changed. A file that cannot be read, as while it is replaced, changes none."""
        assert self._file is not None
        try:
            stat = self._file.stat()
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if state != self._read:
                self._from_file = [key.encode() for key in read_key_file(self._file)]
                self._read = state
            fault = ""
        except (OSError, SettingsError) as error:
            fault = str(error)
        if fault and fault != self._fault:
            log.warning("the keys read before stay valid: BERT_API_KEY_FILE: %s", fault)
        self._fault = fault


def find_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key that a request states; empty if it states none."""
    stated = headers.get(b"authorization", b"")
    if scheme := BEARER.match(stated):
        return stated[scheme.end() :]
    return next((headers[name] for name in KEY_HEADERS if name in headers), b"")
