"""From the bytes of a body to the request in it, at a bounded cost: the only JSON parser of bodies.

A large body is parsed on a thread. A parser keeps the GIL until it has done its bytes, and 8 MB of `[],` take 0.8 s and
360 MB, so the strings and the rest are parsed apart: strings in pieces, the rest after its values have been counted.
"""

import asyncio
import codecs
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from pydantic_core import from_json

from ..errors import BadRequest, TooLarge
from ..settings import PREFIX, Settings
from ..tasks.inputs import MAX_TOP_K
from .validation import Model, validate

T = TypeVar("T")
INLINE_BYTES = 2**14  # fewer take 1 ms on the event loop, 8 ms at the very worst; a thread adds 0.2 ms
PIECE_BYTES = 2**16  # of strings that are parsed at once: 0.5 ms
OTHER_VALUES = 256  # beside the inputs and targets: the other fields of a request
STRINGS_PER_INPUT = 4  # {"text": "a", "text_pair": "b"}
ESCAPES, WORST_ESCAPE = 2, 12  # of a character in JSON, and their bytes: a surrogate pair
BYTES_PER_VALUE = 20  # outside of strings: the digits of a token id, its comma and an indentation of 12
SPACE_BYTES = 2**17  # likewise, of a body with few values
NOT_JSON = "the body is not valid JSON in UTF-8: Invalid JSON"
POSITION = re.compile(r" at line \d+ column \d+$")  # of a piece
THREAD = ThreadPoolExecutor(1, "body-parser")  # a single thread: it reads the bodies of all clients in turn


class BodyLimits:
    """Bounds of what a valid body can hold, so that parsing costs little more memory than the body has bytes."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.characters = settings, settings.max_characters  # of a string
        self.containers = settings.max_inputs + OTHER_VALUES  # lists and objects
        self.strings = STRINGS_PER_INPUT * self.containers + MAX_TOP_K
        # commas and containers: each number, string, list and object has a comma or is a container
        self.values = self.strings + settings.max_waiting_tokens  # numbers: token ids

    @cached_property
    def string(self) -> "re.Pattern[bytes]":
        """A string with escapes; possessive, so that it takes linear time whatever follows."""
        return re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+){0,%d}+"' % (ESCAPES * self.characters), re.DOTALL)

    def check(self, count: int, most: int, what: str, *names: str) -> None:
        """`names`: of the settings that decide about `most`. Raises TooLarge."""
        if count > most:
            stated = ", ".join(f"{PREFIX}{name.upper()} is {getattr(self.settings, name)}" for name in names)
            raise TooLarge(f"the body has {count} {what} or more; at most {most} are accepted ({stated}): split it")


def start_thread() -> None:
    """Starts the thread now: a system that can start no further thread fails at once. Raises RuntimeError."""
    THREAD.submit(int).result()


async def on_thread(step: Callable[[], T]) -> T:
    """What `step` returns on the thread. A step that has not begun is dropped when its request is cancelled."""
    return await asyncio.get_running_loop().run_in_executor(THREAD, step)


def parse(schema: type[Model], body: bytes, settings: Settings) -> Model:
    """The request in a body.

    Raises BadRequest if it is not JSON, TooLarge for more values than are valid, and Invalid as `validate`.
    """
    body = body.removeprefix(codecs.BOM_UTF8)  # RFC 8259 lets a parser ignore it, and clients on Windows write it
    if len(body) <= INLINE_BYTES:
        return validate(schema, _from_json(body))
    return validate(schema, decode(body, BodyLimits(settings)))


def decode(body: bytes, limits: BodyLimits) -> Any:
    """The content of a JSON body. Raises BadRequest and TooLarge."""
    strings: list[str] = []
    outside: list[bytes] = []  # the body with the number of each string in its place
    piece: list[bytes] = []
    at = size = 0
    while (start := body.find(b'"', at)) >= 0:
        number = len(strings) + len(piece)
        limits.check(number + 1, limits.strings, "strings", "max_inputs")
        end = _find_end(body, start, limits)
        outside += (body[at:start], b'"%d"' % number)
        piece.append(body[start:end])
        at, size = end, size + end - start
        if size > PIECE_BYTES:
            strings += _decode_strings(piece)
            piece, size = [], 0
    strings += _decode_strings(piece)
    return _put_back(_from_json(_check_counts(b"".join([*outside, body[at:]]), limits), is_piece=True), strings)


def _find_end(body: bytes, start: int, limits: BodyLimits) -> int:
    """The end of the string that begins at `start`."""
    longest, escapes = WORST_ESCAPE * limits.characters + 2, ESCAPES * limits.characters
    end = body.find(b'"', start + 1) + 1
    if end and body.find(b"\\", start, end) >= 0:
        found = limits.string.match(body, start, start + longest)
        end = found.end() if found else 0
    if not end and len(body) - start <= longest and body.count(b"\\", start) <= escapes:
        raise BadRequest(f"{NOT_JSON}: EOF while parsing a string")
    if not end or end - start > longest:
        most = f"at most {limits.characters} are accepted (BERT_MAX_CHARACTERS)"
        raise TooLarge(f"the string at byte {start} of the body has too many characters; {most}: shorten it")
    return end


def _check_counts(outside: bytes, limits: BodyLimits) -> bytes:
    containers = outside.count(b"[") + outside.count(b"{")
    values = containers + outside.count(b",")
    limits.check(containers, limits.containers, "lists and objects", "max_inputs")
    limits.check(values, limits.values, "values", "max_inputs", "max_waiting_tokens")
    if len(outside) > (most := SPACE_BYTES + BYTES_PER_VALUE * values):
        size = f"the body has {len(outside)} bytes outside of its strings"
        raise TooLarge(f"{size}; for {values} values at most {most} are accepted: send it without spaces")
    return outside


def _decode_strings(piece: list[bytes]) -> list[str]:
    strings: list[str] = _from_json(b"[%b]" % b",".join(piece), is_piece=True)
    return strings


def _from_json(content: bytes, *, is_piece: bool = False) -> Any:
    try:
        return from_json(content)
    except ValueError as error:
        fault = POSITION.sub("", str(error)) if is_piece else str(error)
    raise BadRequest(f"{NOT_JSON}: {fault}")


def _put_back(value: Any, strings: list[str]) -> Any:
    """The value with the strings in the places of their numbers."""
    if isinstance(value, str):
        return strings[int(value)]
    if isinstance(value, list):
        return [_put_back(item, strings) for item in value]
    if isinstance(value, dict):
        return {strings[int(name)]: _put_back(item, strings) for name, item in value.items()}
    return value
