"""Parses a large body on a thread, in pieces: a parser keeps the GIL until it has done its bytes, and for 8 MB that is
10 to 40 ms in which nothing else runs. Knows no task."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import from_json

from service.errors import BadRequest, DeadlineExceeded, TooLarge
from service.http.limits.structure import BodyLimits, Structure, find_structure, split_list
from service.http.validation import validate

Model = TypeVar("Model", bound=BaseModel)
INLINE_BYTES = 2**14  # fewer take 1 ms on the event loop, 8 ms at the very worst; a thread adds 0.2 ms
PIECE_BYTES = 2**16
POSITION = re.compile(r" at line \d+ column \d+$")  # of a piece
THREAD = ThreadPoolExecutor(1, "body-parser")  # one: the bodies of all clients are parsed one after another


async def parse_large(parse: Callable[[], Model], size: int, timeout_seconds: float) -> tuple[Model, float]:
    """What `parse` makes of a body of `size` bytes, on the thread, with the seconds that are left.

    Raises what `parse` raises, and DeadlineExceeded.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout(timeout_seconds):
            parsed = await loop.run_in_executor(THREAD, parse)
            return parsed, timeout_seconds - (loop.time() - started)
    except TimeoutError:
        fault = f"the deadline passed after {timeout_seconds:.3f} s, while the body of {size} bytes was parsed"
        raise DeadlineExceeded(fault) from None


def start_thread() -> None:
    """So that a system without room for one more thread shows it at the start. Raises RuntimeError."""
    THREAD.submit(int).result()


def parse_in_pieces(schema: type[Model], body: bytes, limits: BodyLimits) -> Model:
    """As `validation.parse`. Raises also TooLarge, for more values than a valid body can have."""
    structure = find_structure(body, limits)
    skeleton = _without_lists(body, structure)
    _check_size(len(skeleton), limits, "outside of its lists")
    content = _parse_piece(skeleton, "outside of the lists")
    lists = [_parse_list(body, structure, start, end, limits) for start, end in structure.lists]
    if isinstance(content, dict):
        content = {name: lists[value[0]] if isinstance(value, list) else value for name, value in content.items()}
    return validate(schema, content)


def _without_lists(body: bytes, structure: Structure) -> bytes:
    """The body with the number of each list in the place of its items."""
    parts, first = [], 0
    for number, (start, end) in enumerate(structure.lists):
        parts += [body[first : start + 1], b"%d" % number]
        first = end
    return b"".join([*parts, body[first:]])


def _parse_list(body: bytes, structure: Structure, start: int, end: int, limits: BodyLimits) -> list[Any]:
    items: list[Any] = []
    for first, last in split_list(structure, start, end, PIECE_BYTES):
        _check_size(last - first - PIECE_BYTES, limits, f"or more in one item, after byte {first}")
        # a 0 beside the comma that was cut out: an item that is missing there is an error, as in the whole list
        before, after = b"[0," if first > start + 1 else b"[", b",0]" if last < end else b"]"
        piece = _parse_piece(before + body[first:last] + after, f"in bytes {first} to {last}")
        items += piece[len(before) // 3 : len(piece) - len(after) // 3]
    return items


def _parse_piece(piece: bytes, where: str) -> Any:
    try:
        return from_json(piece)
    except ValueError as error:
        fault = POSITION.sub("", str(error))
    raise BadRequest(f"the body is not valid JSON in UTF-8: Invalid JSON: {fault} {where}")


def _check_size(size: int, limits: BodyLimits, where: str) -> None:
    if size > limits.piece_bytes:
        most = f"at most {limits.piece_bytes} are accepted (BERT_MAX_CHARACTERS)"
        raise TooLarge(f"the body has {size} bytes {where}; {most}: shorten it")
