"""Turns of contenders, and the clock that times them."""

import time
from collections.abc import Callable, Mapping

TURN_SECONDS, MOST_SECONDS = 0.3, 4.0  # of a turn at least; of a contender in all, after which it gets no further turn


def interleaved(
    contenders: Mapping[str, Callable[[], float]], rounds: int, first: Mapping[str, float]
) -> dict[str, float]:
    """Seconds of the best run of each contender, a function that runs once and returns seconds.

    A fast one runs several times a turn. `first` has the seconds of a run before; it warmed up, and counts only without
    another run.
    """
    best, spent = dict(first), dict(first)
    for number in range(rounds):
        for name, run in contenders.items():
            turn = 0.0
            while turn < TURN_SECONDS and spent[name] < MOST_SECONDS:
                taken = run()
                turn, spent[name] = turn + taken, spent[name] + taken
                best[name] = taken if number == 0 and turn == taken else min(best[name], taken)
    return best


def clock_for(threads: int) -> Callable[[], float]:
    """The clock that times an engine: of one thread its processor time, to which other load on the machine adds little.

    Several threads also wait for each other, which only the wall clock shows.
    """
    return time.process_time if threads == 1 else time.perf_counter
