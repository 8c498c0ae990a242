"""`python -m benchmarks.engine`: tokens per second of engines alone, ours and others, by length mix.

Each contender is a process of its own. They take turns within each round, stopped while it is not their turn, and the
best run of each counts, because machines drift by more than the differences to be measured. In the first run of a mix
every engine tries arrangements of its texts and takes the fastest. On one core, `taskset -c 0`, processor time counts,
which other load on the machine hardly changes.

    ceiling   the bare products of all linear layers, in ONNX Runtime, fp32 and int8
    ours      our artifact through the queue and the model runner of the service, one text a request
    others    benchmarks/engine/contenders.py

`python -m benchmarks.engine.prepare` makes what is measured.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

from benchmarks.engine.contenders import CONTENDERS
from benchmarks.engine.prepare import MODELS, contender_python, our_artifacts
from benchmarks.engine.process import ContenderError, ContenderProcess
from benchmarks.engine.turns import interleaved
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import SIZES, checkpoint
from benchmarks.harness.machine import table, update, write
from packbert.service.engine.cpu import available_cores

CEILINGS = ("fp32", "int8")
Result = TypeVar("Result")


def main() -> None:
    arguments = parse_arguments()
    with Bench(arguments.size, arguments.contender) as bench:
        results = {
            name: bench.measure(name, arguments.rounds) for name in mixes.MIXES if re.search(arguments.mix, name)
        }
    rates = {mix: found["tokens_per_second"] for mix, found in results.items()}
    names = dict.fromkeys(name for one in rates.values() for name in one)
    rows = [[name, *(one.get(name, "") for one in rates.values())] for name in names]
    print(table(["tokens/s", *(mix[:20] for mix in rates)], rows))
    if arguments.output != "-":
        details = {"size": SIZES[arguments.size], "rounds": arguments.rounds, "threads": available_cores()}
        keep = update if arguments.mix else write
        keep(arguments.output, results, details=details | {"left_out": bench.left_out})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    parser.add_argument(
        "--mix", default="", help="only the mixes whose name has this pattern; the JSON keeps the others"
    )
    parser.add_argument("--contender", default="", help="only the contenders whose name has this pattern")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default="engine", help="name of the JSON file in benchmarks/results; - for none")
    return parser.parse_args()


class Bench:
    """Every contender for one model size, each in its process; those that do not start are left out with the reason."""

    def __init__(self, size: str, only: str = "") -> None:
        self.vocabulary, threads = SIZES[size]["vocab_size"], available_cores()
        self.processes: dict[str, ContenderProcess] = {}
        ours, refused = our_artifacts(size)
        self.left_out = {f"ours {precision}": reason for precision, reason in refused.items()}
        folders = {f"ceiling {precision}": checkpoint(size) for precision in CEILINGS}
        folders |= {f"ours {precision}": folder for precision, folder in ours.items()}
        folders |= dict.fromkeys(CONTENDERS, MODELS / size)
        wanted = {name: folder for name, folder in folders.items() if re.search(only, name)}
        names = list(wanted)
        for i in range(0, len(names), 2):  # loading side by side is faster, all at once would need too much memory
            for name in names[i : i + 2]:
                python = contender_python() if name in CONTENDERS else sys.executable
                command = [python, "-m", "benchmarks.engine.worker", name, str(wanted[name]), str(threads)]
                self.processes[name] = ContenderProcess(command)
            for name in names[i : i + 2]:
                self._try(name, self.processes[name].wait_until_ready)

    def measure(self, mix: str, rounds: int) -> dict[str, Any]:
        """Tokens per second and arrangement by contender, for the texts of a mix."""
        lengths, started = mixes.MIXES[mix], time.monotonic()
        texts = [tokens.ids.tolist() for tokens in mixes.texts(lengths, vocabulary=self.vocabulary)]
        tuned = {name: self._try(name, partial(process.tune, texts)) for name, process in list(self.processes.items())}
        found = {name: one for name, one in tuned.items() if one}
        turns = {name: partial(self._turn, name) for name in found}
        best = interleaved(turns, rounds, {name: seconds for name, (seconds, _) in found.items()})
        rates = {name: sum(lengths) / seconds for name, seconds in best.items() if name in self.processes}
        print(f"{mix}: {time.monotonic() - started:.0f} s", flush=True)
        arrangements = {name: found[name][1] for name in rates}
        return {"lengths": lengths, "tokens_per_second": {"tokens": sum(lengths)} | rates, "arrangements": arrangements}

    def _turn(self, name: str) -> float:
        """Seconds of one run; of one that fails, or has failed before, endless."""
        process = self.processes.get(name)
        taken = self._try(name, process.seconds) if process else None
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


if __name__ == "__main__":
    main()
