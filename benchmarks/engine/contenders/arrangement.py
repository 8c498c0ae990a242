"""How texts are arranged for an engine: in one padded batch, or sorted by length in batches that run in streams.

An engine gets the arrangement that is the fastest for the texts that it is measured with, found by trying.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.engine.contenders.padding import Ids, Vectors
from benchmarks.engine.contenders.turns import clock_for

Run = Callable[[Sequence[Ids]], Vectors]  # one batch; as many threads may call it as it was opened with streams
BUCKET_TOKENS = (128, 512)


@dataclass(frozen=True, slots=True)
class Arrangement:
    streams: int = 1  # batches that run side by side, each with its share of the threads
    bucket_tokens: int | None = None  # of a batch of sorted texts, padding included; None: one batch, as the texts come

    def __str__(self) -> str:
        if self.bucket_tokens is None:
            return "one batch"
        return f"sorted, batches of {self.bucket_tokens} tokens, {self.streams} at a time"

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """The places of the texts by batch; the longest texts come first, so that streams end together."""
        if self.bucket_tokens is None:
            return [list(range(len(lengths)))]
        groups: list[list[int]] = []
        for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
            if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= self.bucket_tokens:
                groups[-1].append(place)
            else:
                groups.append([place])
        return groups


PLAIN = Arrangement()
Values = tuple[int, int | None]  # of an Arrangement


@dataclass(frozen=True, slots=True)
class Tuned:
    """The seconds of the best run, and how its texts were arranged; `values` is None where nothing can be chosen."""

    seconds: float
    shown: str
    values: Values | None = None


def candidates(lengths: Sequence[int], threads: int) -> Iterator[Arrangement]:
    """The arrangements to try: those that give new batches, in streams too where there are several batches."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for bucket_tokens in BUCKET_TOKENS:
        groups = tuple(map(tuple, Arrangement(1, bucket_tokens).groups(lengths)))
        if groups in seen:
            continue
        seen.add(groups)
        yield Arrangement(1, bucket_tokens)
        if len(groups) > 1 and threads > 1:
            yield Arrangement(threads, bucket_tokens)


class Arranged:
    """An engine with its arrangement; `open_engine` gives a Run for a number of streams and is called once for each."""

    def __init__(self, open_engine: Callable[[int], Run], threads: int, *, plain: bool) -> None:
        self._open, self._threads, self._plain = open_engine, threads, plain
        self._clock = clock_for(threads)
        self._runs: dict[int, Run] = {}
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self.arrangement = PLAIN

    def warm_up(self, text: Ids) -> None:
        """Opens the engine for all arrangements that it may take, and runs `text` in each."""
        for streams in {1, 1 if self._plain else self._threads}:
            self._run(streams)([text])

    def vectors(self, texts: Sequence[Ids]) -> Vectors:
        """A vector for each text, in the order of `texts`."""
        run, groups = self._run(self.arrangement.streams), self.arrangement.groups(list(map(len, texts)))
        batches = [[texts[place] for place in group] for group in groups]
        results = self._pools[self.arrangement.streams].map(run, batches) if len(batches) > 1 else map(run, batches)
        rows = np.concatenate(list(results))
        ordered = np.empty_like(rows)
        ordered[np.concatenate([np.array(group) for group in groups])] = rows
        return ordered

    def seconds(self, texts: Sequence[Ids]) -> float:
        """Of one turn over all texts, sorting and padding included."""
        started = self._clock()
        self.vectors(texts)
        return self._clock() - started

    def tune(self, texts: Sequence[Ids], known: Values | None = None) -> Tuned:
        """Takes the arrangement `known` for `texts`, or else the fastest one, found by trying."""
        tried = [PLAIN] if self._plain else candidates(list(map(len, texts)), self._threads)
        best, chosen = float("inf"), PLAIN
        for arrangement in [Arrangement(*known)] if known else tried:
            self.arrangement = arrangement
            taken = self.seconds(texts)
            if taken < best:
                best, chosen = taken, arrangement
        self.arrangement = chosen
        return Tuned(best, str(chosen), (chosen.streams, chosen.bucket_tokens))

    def _run(self, streams: int) -> Run:
        if streams not in self._runs:
            self._runs[streams] = self._open(streams)
            self._pools[streams] = ThreadPoolExecutor(streams)
        return self._runs[streams]
