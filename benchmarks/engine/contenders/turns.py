"""Turns of contenders, and the ratios of what they reach."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Contender = Callable[[], float]  # runs once, returns seconds
Rates = Mapping[str, float]  # tokens a second by contender
PRECISIONS = ("fp32", "bf16", "int8")
ONE_BATCH = "ONNX Runtime padded fp32"
OURS, CEILING, RUNTIME = "ours", "ceiling", "ONNX Runtime buckets"


def interleaved(
    contenders: Mapping[str, Contender], rounds: int, *, min_turn_seconds: float = 0.05, most_seconds: float = 4.0
) -> dict[str, float]:
    """Seconds of the best run of each contender.

    A fast one runs several times a turn; one that has run for `most_seconds` in all gets no further turn.
    """
    best = {name: run() for name, run in contenders.items()}  # the first run warms up; it counts only without another
    spent = dict(best)
    for number in range(rounds):
        for name, run in contenders.items():
            turn = 0.0
            while turn < min_turn_seconds and spent[name] < most_seconds:
                taken = run()
                turn, spent[name] = turn + taken, spent[name] + taken
                best[name] = taken if number == 0 and turn == taken else min(best[name], taken)
    return best


def timed(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def others(rates: Rates, precision: str) -> Iterator[str]:
    """The contenders of `precision` that are not ours."""
    for name in rates:
        if name.endswith(f" {precision}") and not name.startswith((OURS, CEILING)):
            yield name


def best_other(rates: Rates, precision: str, allowed: Callable[[str], bool] = lambda name: True) -> str:
    """The name of the fastest of the others of `precision` that is `allowed`; empty where there is none."""
    names = [name for name in others(rates, precision) if allowed(name)]
    return max(names, key=lambda name: rates[name], default="")


def ratios(rates: Rates) -> dict[str, float]:
    """Of ours to the ceiling, the padded batch, ONNX Runtime's sorted batches and the fastest other, by precision."""
    found = {}
    for precision in PRECISIONS:
        compared = {
            "ceiling": f"{CEILING} {precision}",
            "one padded batch": ONE_BATCH,
            "sorted batches": f"{RUNTIME} {precision}",
            "best other": best_other(rates, precision),
        }
        ours = rates.get(f"{OURS} {precision}")
        for what, name in compared.items():
            if ours and name in rates:
                found[f"{precision} / {what}"] = ours / rates[name]
    return found
