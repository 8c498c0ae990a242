"""Values of responses that HTTP writes some at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any


class LongList(list[Any]):
    """Answers that are long together: HTTP writes one after another, so that other requests get a turn."""


class MadeList(Sequence[Any]):
    """A long list whose answers are made when they are read: memory holds the bytes of all, and the values of one."""

    def __init__(self, make: Callable[..., Any], *columns: Any) -> None:  # sequences or arrays
        self._make, self._columns = make, columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, at: Any) -> Any:  # a place or a slice
        if isinstance(at, slice):
            return MadeList(self._make, *(column[at] for column in self._columns))
        return self._make(*(column[at] for column in self._columns))

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, *self._columns)


def as_lists(value: Any) -> Any:
    """The value with lists in the place of MadeList."""
    return [as_lists(one) for one in value] if isinstance(value, MadeList) else value


class LongObject(dict[str, Any]):
    """An object with long values: HTTP writes each in chunks, and as NPY its only array."""
