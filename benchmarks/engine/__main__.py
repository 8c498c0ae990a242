"""`python -m benchmarks.engine`: tokens per second of engines alone, ours and others, by length mix.

Each contender is a process of its own. They take turns within each round, stopped while it is not their turn, and the
best run of each counts, because machines drift by more than the differences to be measured. In the first run of a mix
every other engine tries arrangements of its texts and takes the fastest, which is kept in
build/benchmarks/engine-arrangements-SIZE-THREADS.json. On one core, `taskset -c 0`, processor time counts, which
other load on the machine hardly changes.

    ceiling   the bare products of all linear layers, in ONNX Runtime, fp32 and int8
    ours      our artifact through the queue and the model runner of the service, one text a request
    others    benchmarks/engine/contenders/table.py

`python -m benchmarks.engine.contenders.prepare` makes what is measured. With --seconds the command ends with status 75
when no further mix fits; the same command then goes on where it ended.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeVar

from benchmarks.engine.contenders.arrangement import Tuned
from benchmarks.engine.contenders.padding import Ids
from benchmarks.engine.contenders.prepare import MODELS, our_artifacts, worker_command
from benchmarks.engine.contenders.process import ContenderError, ContenderProcess
from benchmarks.engine.contenders.table import CONTENDERS
from benchmarks.engine.contenders.turns import Rates, interleaved, ratios
from benchmarks.engine.peak import peaks
from benchmarks.engine.progress import Arrangements, Progress
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import SIZES
from benchmarks.harness.machine import table, update, write
from packbert.service.engine.cpu import available_cores

CEILINGS = ("fp32", "int8")
Result = TypeVar("Result")
UNFINISHED = 75  # EX_TEMPFAIL: the same command goes on


def main() -> int:
    arguments = parse_arguments()
    progress = Progress(arguments.output, arguments.size, arguments.rounds, arguments.contender, available_cores())
    wanted = [name for name in mixes.MIXES if re.search(arguments.mix, name)]
    measure([name for name in wanted if name not in progress.measured], progress, arguments)
    results = {name: progress.measured[name] for name in wanted if name in progress.measured}
    print(report({name: one["tokens_per_second"] for name, one in results.items()}))
    if arguments.output != "-":
        details = {"size": SIZES[arguments.size], "rounds": arguments.rounds, "threads": available_cores()}
        peak = {"peak_operations_per_second_and_core": peaks(available_cores()), "left_out": progress.left_out}
        keep = update if arguments.mix else write
        keep(arguments.output, results, details=details | peak)
    if len(results) < len(wanted):
        print(f"unfinished, {len(wanted) - len(results)} mixes are left: run the command again")
        return UNFINISHED
    progress.remove()
    return 0


def measure(missing: Sequence[str], progress: Progress, arguments: argparse.Namespace) -> None:
    """Measures the mixes that are `missing`, the first and as many more as end in time."""
    started = time.monotonic()
    if missing:
        with Bench(arguments.size, arguments.contender) as bench:
            for name in missing:
                if name != missing[0] and time.monotonic() - started + progress.longest_seconds > arguments.seconds:
                    return
                began = time.monotonic()
                result = bench.measure(name, arguments.rounds)
                progress.add(name, result, bench.left_out, time.monotonic() - began)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    parser.add_argument("--mix", default="", help="only the mixes whose name has this pattern")
    parser.add_argument("--contender", default="", help="only the contenders whose name has this pattern")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="starts no mix that may not end in time")
    parser.add_argument("--output", default="engine", help="name of the JSON file in benchmarks/results; - for none")
    return parser.parse_args()


class Bench:
    """Every contender for one model size, each in its process; those that do not start are left out with the reason."""

    def __init__(self, size: str, only: str = "") -> None:
        self.vocabulary, threads = SIZES[size]["vocab_size"], available_cores()
        self.processes: dict[str, ContenderProcess] = {}
        self.left_out: dict[str, str] = {}
        self.arrangements = Arrangements(f"{size}-{threads}")
        ours, refused = our_artifacts(size)
        self.left_out |= {f"ours {precision}": reason for precision, reason in refused.items()}
        own = [sys.executable, "-m", "benchmarks.engine.contenders.ours"]
        commands = {f"ceiling {one}": [*own, "ceiling", one, size, str(threads)] for one in CEILINGS}
        commands |= {f"ours {one}": [*own, "ours", one, size, str(threads)] for one in ours}
        commands |= {name: worker_command(name, MODELS / size, threads, "cls") for name in CONTENDERS}
        commands = {name: command for name, command in commands.items() if re.search(only, name)}
        for some in _pairs(list(commands)):  # loading side by side is faster, all at once would need too much memory
            started = {name: ContenderProcess(commands[name]) for name in some}
            self.processes |= started
            for name in started:
                self._try(name, started[name].wait_until_ready)

    def measure(self, mix: str, rounds: int) -> dict[str, object]:
        """Tokens per second and arrangement by contender, for the texts of a mix."""
        lengths, started = mixes.MIXES[mix], time.monotonic()
        texts = [tokens.ids for tokens in mixes.texts(lengths, vocabulary=self.vocabulary)]
        tuned: dict[str, Tuned] = {}
        for name, process in list(self.processes.items()):
            one = self._try(name, partial(process.tune, texts, self.arrangements.of(mix, name)))
            if one:
                tuned[name] = one
                self.arrangements.add(mix, name, one.values)
        turns = {name: partial(self._turn, name, texts) for name in tuned}
        best = interleaved(turns, rounds, first={name: one.seconds for name, one in tuned.items()})
        rates = {name: sum(lengths) / seconds for name, seconds in best.items() if name in self.processes}
        print(f"{mix}: {time.monotonic() - started:.0f} s", flush=True)
        shown = {name: tuned[name].shown for name in rates}
        return {"lengths": lengths, "tokens_per_second": {"tokens": sum(lengths)} | rates, "arrangements": shown}

    def _turn(self, name: str, texts: Sequence[Ids]) -> float:
        """Seconds of one run; of one that fails, or has failed before, endless."""
        process = self.processes.get(name)
        taken = self._try(name, partial(process.seconds, texts)) if process else None
        return float("inf") if taken is None else taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.close()

    def _try(self, name: str, call: Callable[[], Result]) -> Result | None:
        """What `call` gives; None if the contender fails, which is left out from then on."""
        try:
            return call()
        except ContenderError as error:
            print(f"{name} is left out: {error}", flush=True)
            self.left_out[name] = str(error)
            self.processes.pop(name).close()
            return None


def _pairs(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[i : i + 2] for i in range(0, len(names), 2)]


def report(results: dict[str, Rates]) -> str:
    """A row for each contender, a column for each mix, then the ratios of ours."""
    names = list(dict.fromkeys(name for rates in results.values() for name in rates))
    columns = [mix.split(":")[0] + mix[mix.index(":") + 1 :][:14] for mix in results]
    rows = [[name, *(rates.get(name, "") for rates in results.values())] for name in names]
    compared = {mix: ratios(rates) for mix, rates in results.items()}
    shown = list(dict.fromkeys(name for one in compared.values() for name in one))
    second = [[name, *(one.get(name, "") for one in compared.values())] for name in shown]
    return f"{table(['tokens/s', *columns], rows)}\n\n{table(['ratio', *columns], second)}"


if __name__ == "__main__":
    sys.exit(main())
