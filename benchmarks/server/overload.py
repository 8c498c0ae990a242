"""`python -m benchmarks.server.overload`: the line under load, against a real server process: what must hold, and what was measured.

    overload   10 times the knee, open loop: goodput, refusals, how soon all is normal again
    fairness   single short texts beside a client who posts 2,000 texts again and again
    sigterm    ends under load: every request that got through is answered
    leaving    half of the clients leave at random times
    poison     one poisoned text among 10,000
    mixups     100,000 answers under concurrency against a table computed alone
    memory     mixed lengths for minutes
    idle       one request at a time: what is neither tokenizing nor the run

All on this machine alone: server, load and whatever else runs share its cores. BERT_ARTIFACT names the artifact; without it the
bundled model is exported first.
"""

import argparse
import asyncio
import os
import random
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness.checkpoints import SAMPLE
from benchmarks.harness.machine import table, write
from benchmarks.harness.process import ServiceProcess
from benchmarks.server import endings, loads
from model_export.export import export

SCENARIOS = {
    "idle": loads.idle,
    "fairness": loads.fairness,
    "overload": loads.overload,
    "mixups": loads.mixups,
    "leaving": loads.leaving,
    "memory": loads.memory,
}
OWN_SERVERS = {"poison": endings.poison, "sigterm": endings.sigterm}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenarios", nargs="*", help=f"of {', '.join([*SCENARIOS, *OWN_SERVERS])}; all when none is named"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of overload")
    parser.add_argument("--minutes", type=float, default=30, help="of mixed lengths")
    parser.add_argument("--times", type=int, default=20, help="SIGTERM is sent")
    parser.add_argument("--answers", type=int, default=100_000, help="compared with the table")
    parser.add_argument("--singles", type=int, default=500, help="single texts timed")
    parser.add_argument(
        "--pause", type=float, default=0, help="seconds at most between two requests of a client, in memory"
    )
    parser.add_argument("--output", default="line", help="name of the JSON file in benchmarks/results; - for none")
    arguments = parser.parse_args()
    plan = loads.LoadPlan(
        **{name: getattr(arguments, name) for name in ("seconds", "minutes", "times", "answers", "singles", "pause")}
    )
    random.seed(5)
    findings: list[loads.Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        artifact = (
            Path(os.environ.get("BERT_ARTIFACT", ""))
            if os.environ.get("BERT_ARTIFACT")
            else _bundled(Path(folder) / "artifact")
        )
        for name in arguments.scenarios or [*SCENARIOS, *OWN_SERVERS]:
            print(f"{name} ...", flush=True)
            findings += _play(name, artifact, plan)
            print(_report(findings), flush=True)
    if arguments.output != "-":
        rows = [
            {"scenario": f.scenario, "what": f.what, "measured": f.measured, "bound": f.bound, "holds": f.holds}
            for f in findings
        ]
        write(arguments.output, rows, details={"plan": asdict(plan)})


def _play(name: str, artifact: Path, plan: loads.LoadPlan) -> list[loads.Finding]:
    if name in OWN_SERVERS:
        return asyncio.run(OWN_SERVERS[name](artifact, plan))
    with ServiceProcess({"BERT_ARTIFACT": str(artifact)} | loads.SETTINGS.get(name, {})) as process:
        return asyncio.run(SCENARIOS[name](loads.Target(port=process.port, pid=process.process.pid), plan))


def _bundled(artifact: Path) -> Path:
    export(SAMPLE, artifact, precision="fp32")
    return artifact


def _report(findings: list[loads.Finding]) -> str:
    return table(
        ["scenario", "what", "measured", "must be", "holds"],
        [[f.scenario, f.what, f.measured, f.bound, _shown(f.holds)] for f in findings],
    )


def _shown(holds: bool | None) -> str:
    return "" if holds is None else "yes" if holds else "NO"


if __name__ == "__main__":
    main()
