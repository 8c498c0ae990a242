"""Turns of contenders, and the ratios of what they reach."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Contender = Callable[[], float]  # runs once, returns seconds
Rates = Mapping[str, float]  # tokens a second by contender
PRECISIONS = ("fp32", "bf16", "int8")
OURS, CEILING, ONE_BATCH, RAGGED = "ours", "ceiling", " padded ", " ragged "  # parts of names


def interleaved(
    contenders: Mapping[str, Contender],
    rounds: int,
    *,
    first: Mapping[str, float] | None = None,
    min_turn_seconds: float = 0.3,
    most_seconds: float = 4.0,
) -> dict[str, float]:
    """Seconds of the best run of each contender; `first` has those of its first run, where it has run before.

    A fast one runs several times a turn; one that has run for `most_seconds` in all gets no further turn.
    """
    # the first run warms up; it counts only without another
    best = dict(first or {name: run() for name, run in contenders.items()})
    spent = dict(best)
    for number in range(rounds):
        for name, run in contenders.items():
            turn = 0.0
            while turn < min_turn_seconds and spent[name] < most_seconds:
                taken = run()
                turn, spent[name] = turn + taken, spent[name] + taken
                best[name] = taken if number == 0 and turn == taken else min(best[name], taken)
    return best


def clock_for(threads: int) -> Callable[[], float]:
    """The clock that times an engine: of one thread its processor time, to which other load on the machine adds little.

    Several threads also wait for each other, which only the wall clock shows.
    """
    return time.process_time if threads == 1 else time.perf_counter


def timed(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def fastest(rates: Rates, precision: str, allowed: Callable[[str], bool] = lambda name: True) -> str:
    """The name of the fastest contender of `precision` that is not ours and is `allowed`; empty where there is none."""
    names = [name for name in rates if name.endswith(f" {precision}") and not name.startswith((OURS, CEILING))]
    return max(filter(allowed, names), key=lambda name: rates[name], default="")


def runs_one_batch(name: str) -> bool:
    """Whether the contender runs all texts as one padded batch."""
    return ONE_BATCH in name


def runs_sorted_batches(name: str) -> bool:
    """Whether the contender pads texts that are sorted by length."""
    return ONE_BATCH not in name and RAGGED not in name


def compared(
    rates: Rates, precision: str, accurate: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, str]]:
    """What ours is compared with and its name, empty where it was not measured; `accurate` is asked of the others."""
    yield "ceiling", f"{CEILING} {precision}" if f"{CEILING} {precision}" in rates else ""
    yield "one padded batch", fastest(rates, precision, runs_one_batch)
    yield "sorted batches", fastest(rates, precision, lambda name: runs_sorted_batches(name) and accurate(name))
    yield "best other", fastest(rates, precision, accurate)


def ratios(rates: Rates) -> dict[str, float]:
    """Of ours to what it is compared with, by precision."""
    found: dict[str, float] = {}
    for precision in PRECISIONS:
        ours = rates.get(f"{OURS} {precision}", 0.0)
        found |= {
            f"{precision} / {what}": ours / rates[name] for what, name in compared(rates, precision) if ours and name
        }
    return found
