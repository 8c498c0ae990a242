"""`python -m benchmarks.engine`: tokens per second of the engine alone, by length mix.

Contenders take turns within each round, and the best round of each counts, because machines drift by more than the
differences to be measured.

    ceiling   the bare products of all linear layers, in ONNX Runtime, fp32 and int8
    ragged    our artifact through the queue and the model runner of the service, one text a request, fp32 and int8
    padded    the graph of a transformers export, fused by ONNX Runtime's own optimizer, one padded batch
    torch     transformers on torch, one padded batch
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.engine.alone import EngineAlone
from benchmarks.engine.ceiling import Ceiling, silence_warnings
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import ON_CPU, SIZES, artifact, checkpoint
from benchmarks.harness.machine import table, write
from model_export.artifact.batch import Tokens
from service.engine.cpu import available_cores

Contender = Callable[[], float]  # runs once, returns seconds
Rates = dict[str, float]
COLUMNS = ("tokens", "ceiling fp32", "ragged fp32", "padded fp32", "torch fp32", "ceiling int8", "ragged int8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    parser.add_argument("--mix", default="", help="only the mixes whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-torch", action="store_true", help="leave out what needs torch and transformers")
    parser.add_argument("--output", default="engine", help="name of the JSON file in benchmarks/results; - for none")
    arguments = parser.parse_args()
    silence_warnings()
    bench = Bench(arguments.size, with_torch=not arguments.without_torch)
    print("loaded; measuring", flush=True)
    results = {
        name: bench.measure(lengths, arguments.rounds) for name, lengths in mixes.MIXES.items() if arguments.mix in name
    }
    print(report(results))
    if arguments.output != "-":
        shown = {
            name: {"lengths": mixes.MIXES[name], "tokens_per_second": rates, "ratios": ratios(rates)}
            for name, rates in results.items()
        }
        write(
            arguments.output,
            shown,
            details={"size": SIZES[arguments.size], "rounds": arguments.rounds, "threads": bench.threads},
        )


class Bench:
    """Every contender for one model size, loaded once."""

    def __init__(self, size: str, *, with_torch: bool) -> None:
        self.config, self.threads = SIZES[size], available_cores()
        self.ceilings = {precision: Ceiling(self.config, precision, self.threads) for precision in ON_CPU}
        self.engines = {precision: EngineAlone(artifact(size, precision), self.threads) for precision in ON_CPU}
        self.padded: dict[str, Callable[[Any], Any]] = {}
        if with_torch:
            from benchmarks.engine.padded import FusedPadded, TorchPadded

            self.padded = {
                "padded fp32": FusedPadded(checkpoint(size), self.threads),
                "torch fp32": TorchPadded(checkpoint(size), self.threads),
            }

    def measure(self, lengths: list[int], rounds: int) -> Rates:
        """Tokens per second by contender."""
        sequences, tokens = mixes.texts(lengths, vocabulary=self.config["vocab_size"]), sum(lengths)
        contenders: dict[str, Contender] = {}
        for precision in ON_CPU:
            contenders[f"ceiling {precision}"] = partial(self.ceilings[precision].seconds, tokens)
            contenders[f"ragged {precision}"] = partial(self.engines[precision].seconds, [[one] for one in sequences])
        if self.padded:
            from benchmarks.engine.padded import pad

            for name, run in self.padded.items():
                contenders[name] = partial(timed, partial(_run_padded, run, pad, sequences))
        seconds = interleaved(contenders, rounds)
        return {"tokens": tokens} | {name: tokens / best for name, best in seconds.items()}


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


def _run_padded(run: Callable[[Any], Any], pad: Callable[[Sequence[Tokens]], Any], sequences: Sequence[Tokens]) -> Any:
    return run(pad(sequences))


def timed(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def ratios(rates: Rates) -> Rates:
    """Ratios of tokens a second; a pair with a missing contender is left out."""
    pairs = {
        "fp32 / ceiling": ("ragged fp32", "ceiling fp32"),
        "int8 / ceiling": ("ragged int8", "ceiling int8"),
        "fp32 / padded": ("ragged fp32", "padded fp32"),
        "int8 / padded": ("ragged int8", "padded fp32"),
        "fp32 / torch": ("ragged fp32", "torch fp32"),
    }
    return {
        name: rates[ours] / rates[other] for name, (ours, other) in pairs.items() if ours in rates and other in rates
    }


def report(results: Mapping[str, Rates]) -> str:
    columns = [column for column in COLUMNS if any(column in rates for rates in results.values())]
    first = table(
        ["tokens/s", *columns], [[name, *(rates[column] for column in columns)] for name, rates in results.items()]
    )
    names = list(ratios(next(iter(results.values()))))
    second = table(["ratio", *names], [[name, *ratios(rates).values()] for name, rates in results.items()])
    return f"{first}\n\n{second}"


if __name__ == "__main__":
    main()
