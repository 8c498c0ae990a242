"""Finds the lists of a JSON body and counts its values, before any of them becomes an object. Does not check the JSON:
whatever is not JSON is refused by the parser, which gets all of its bytes.

Every window takes the same time, whatever it holds, and NumPy lets go of the GIL while it reads one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.errors import TooLarge
from service.settings import Settings

Positions = NDArray[np.int64]
WINDOW_BYTES = 2**16  # about 1 ms
QUOTE, BACKSLASH, COMMA, OPEN_LIST = b'"\\,['
FOUND = np.isin(np.arange(256), list(b'"\\,[]{}'))
DEPTH_CHANGE = np.zeros(256, np.int8)
DEPTH_CHANGE[list(b"[{")], DEPTH_CHANGE[list(b"]}")] = 1, -1
ROOM = 256  # values beside the inputs and targets: the other fields of a request
STRINGS_PER_INPUT = 4  # {"text": "a", "text_pair": "b"}
WORST_ESCAPE = 12  # bytes of one character in JSON: a surrogate pair as two escapes


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Bounds of what a valid body can hold, so that parsing costs little more memory than the body has bytes."""

    strings: int
    containers: int  # lists and objects
    values: int  # commas and containers: one for each number, string, list and object
    piece_bytes: int  # of one input, and of all that is not in a list

    @classmethod
    def of(cls, settings: Settings) -> "BodyLimits":
        inputs = settings.max_inputs + ROOM
        return cls(
            strings=STRINGS_PER_INPUT * inputs + settings.max_top_k,
            containers=inputs,
            values=STRINGS_PER_INPUT * inputs + settings.max_top_k + settings.max_waiting_tokens,  # numbers: token ids
            piece_bytes=2**16 + 2 * WORST_ESCAPE * settings.max_characters,  # a pair of texts
        )


@dataclass(slots=True)
class Structure:
    """The lists that are values of the body's own fields."""

    lists: list[tuple[int, int]]  # positions of [ and of its ]
    commas: Positions  # those between the items of `lists`, and between the fields of objects beside them


@dataclass(slots=True)
class _Scan:
    """The state between two windows."""

    limits: BodyLimits
    escaped: bool = False  # the next byte is
    in_string: int = 0  # 1 within one
    depth: int = 0
    strings: int = 0
    containers: int = 0
    values: int = 0
    marks: list[Positions] = field(default_factory=list)  # where a value of a field begins and ends
    commas: list[Positions] = field(default_factory=list)

    def read(self, window: NDArray[np.uint8], start: int) -> None:
        """Raises TooLarge."""
        at = np.flatnonzero(FOUND[window])
        found = window[at]
        quotes = found == QUOTE
        if self.escaped or (found == BACKSLASH).any():
            quotes &= ~self._find_escaped(at[found == BACKSLASH], len(window))[at]
        inside = np.add.accumulate(quotes, dtype=np.uint8) + np.uint8(self.in_string) & 1
        self.in_string = int(inside[-1]) if len(inside) else self.in_string
        outside = (inside == 0) & (found != QUOTE) & (found != BACKSLASH)
        at, found = at[outside], found[outside]
        change = DEPTH_CHANGE[found]
        depth = np.add.accumulate(change, dtype=np.int64) + self.depth
        self.depth = int(depth[-1]) if len(depth) else self.depth
        commas, opens = found == COMMA, change > 0
        self._count(int(np.count_nonzero(quotes)), int(np.count_nonzero(opens)), int(np.count_nonzero(commas)))
        self.marks.append(at[(opens & (depth == 2)) | ((change < 0) & (depth == 1))] + start)
        self.commas.append(at[commas & (depth == 2)] + start)

    def _find_escaped(self, backslashes: Positions, size: int) -> NDArray[np.bool_]:
        """[size + 1]: which bytes follow an odd number of backslashes; the last is the next window's first."""
        escaped = np.zeros(size + 1, bool)
        escaped[0] = self.escaped
        if self.escaped and len(backslashes) and backslashes[0] == 0:
            backslashes = backslashes[1:]
        firsts = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
        lengths = np.diff(firsts, append=len(backslashes))
        escaped[(backslashes[firsts] + lengths)[lengths % 2 == 1]] = True
        self.escaped = bool(escaped[size])
        return escaped

    def _count(self, quotes: int, opens: int, commas: int) -> None:
        self.strings += (quotes + 1) // 2
        self.containers += opens
        self.values += opens + commas
        limits = self.limits
        for count, most, what, settings in (
            (self.strings, limits.strings, "strings", "BERT_MAX_INPUTS"),
            (self.containers, limits.containers, "lists and objects", "BERT_MAX_INPUTS"),
            (self.values, limits.values, "values", "BERT_MAX_INPUTS, BERT_MAX_WAITING_TOKENS"),
        ):
            if count > most:
                raise TooLarge(
                    f"the body has {count} {what} or more; at most {most} are accepted ({settings}): split it"
                )


def find_structure(body: bytes, limits: BodyLimits) -> Structure:
    """Raises TooLarge for more values than a valid body can have, at the first window with one too many."""
    data, scan = np.frombuffer(body, np.uint8), _Scan(limits)
    for start in range(0, len(data), WINDOW_BYTES):
        scan.read(data[start : start + WINDOW_BYTES], start)
    marks = np.concatenate([*scan.marks, [len(body)]]).tolist()  # a value that does not end: to the end of the body
    pairs = zip(marks[::2], marks[1::2], strict=False)
    lists = [(int(first), int(last)) for first, last in pairs if body[int(first)] == OPEN_LIST]
    return Structure(lists, np.concatenate([*scan.commas, np.empty(0, np.int64)]))


def split_list(structure: Structure, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of whole items in the list from `start` to `end`: each the shortest of at least `size` bytes, without
    the commas between two ranges."""
    first = start + 1
    while end - first > size:
        index = int(np.searchsorted(structure.commas, first + size))
        if index == len(structure.commas) or (cut := int(structure.commas[index])) > end:
            break
        yield first, cut
        first = cut + 1
    yield first, end
