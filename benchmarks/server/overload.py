"""`python -m benchmarks.server.overload`: a real server process under load; what was measured, and what must hold.

    idle         one request at a time: the time that is neither tokenizing nor the run
    fairness     single short texts beside a client that posts 2,000 texts again and again
    bulk         100 bulk requests at once: goodput, computed tokens, single texts beside them
    deadline     large requests with a deadline of 100 ms: when they are answered
    overload     10 times the knee, open loop: goodput, refusals, seconds until single texts are as fast as before
    waits        2, 5 and 10 times the knee with BERT_MAX_WAIT_SECONDS=10: how long the answered waited
    returns      600 requests that are refused at once and come back when they are asked to
    mixups       100,000 concurrent answers against a table computed alone
    disconnects  half of the clients disconnect at random times
    memory       mixed lengths for minutes
    large-requests  each kind of 8 MB body: how long a second client waits
    peak-memory  unfinished bodies, slow readers, nested lists: resident memory at the peak and after
    poison       one poisoned text among 10,000
    sigterm      SIGTERM under load: every request that arrived is answered
    rolling      a rolling restart of two instances behind clients that ask /ready: no request fails
    counters     every kind of request and of disconnect: /metrics counts each exactly once

Server and load run on this machine and share its cores. BERT_MODEL names the artifact; without it the bundled model
is exported first.
"""

import argparse
import asyncio
import os
import random
import tempfile
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.harness.checkpoints import SAMPLE
from benchmarks.harness.machine import table, write
from benchmarks.harness.process import ServiceProcess
from benchmarks.server.scenarios import faults, latency
from benchmarks.server.scenarios.bulk import bulk
from benchmarks.server.scenarios.counters import counters
from benchmarks.server.scenarios.deadline import deadline
from benchmarks.server.scenarios.disconnects import disconnects
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target
from benchmarks.server.scenarios.large_requests import large_requests
from benchmarks.server.scenarios.memory import memory
from benchmarks.server.scenarios.mixups import mixups
from benchmarks.server.scenarios.peak_memory import peak_memory
from benchmarks.server.scenarios.rolling import rolling
from benchmarks.server.scenarios.saturation import overload
from benchmarks.server.scenarios.waits import MAX_WAIT_SECONDS, RETURNS_MAX_WAIT_SECONDS, returns, waits
from packbert.model_export.export import export

SCENARIOS = {
    "idle": latency.idle,
    "fairness": latency.fairness,
    "bulk": bulk,
    "deadline": deadline,
    "overload": overload,
    "waits": waits,
    "returns": returns,
    "mixups": mixups,
    "disconnects": disconnects,
    "memory": memory,
    "large-requests": large_requests,
    "peak-memory": peak_memory,
}
OWN_SERVERS = {"poison": faults.poison, "sigterm": faults.sigterm, "rolling": rolling, "counters": counters}
NAMES = [*SCENARIOS, *OWN_SERVERS]
SETTINGS = {
    "overload": {"BERT_MAX_WAIT_SECONDS": "1"},  # the limit decides how soon single texts are as fast as before
    "waits": {"BERT_MAX_WAIT_SECONDS": str(MAX_WAIT_SECONDS)},
    "returns": {"BERT_MAX_WAIT_SECONDS": str(RETURNS_MAX_WAIT_SECONDS)},
    "mixups": {"BERT_MAX_WAIT_SECONDS": "60"},  # so that no request is refused on a busy machine
}


def main() -> None:
    arguments = parse_arguments()
    plan = LoadPlan(**{field.name: getattr(arguments, field.name) for field in fields(LoadPlan)})
    random.seed(5)
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(os.environ.get("BERT_MODEL") or export_bundled(Path(folder) / "artifact"))
        for name in arguments.scenarios or NAMES:
            print(f"{name} ...", flush=True)
            findings += play(name, artifact, plan)
            print(report(findings), flush=True)
    if arguments.output != "-":
        write(arguments.output, [asdict(finding) for finding in findings], details={"plan": asdict(plan)})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(NAMES)}; all when none is named")
    parser.add_argument("--seconds", type=float, default=60, help="of overload, and of each load of waits")
    parser.add_argument("--minutes", type=float, default=30, help="of mixed lengths in memory")
    parser.add_argument("--times", type=int, default=20, help="that SIGTERM is sent")
    parser.add_argument("--rolling", type=int, default=4000, help="requests during rolling restarts")
    parser.add_argument("--answers", type=int, default=100_000, help="compared with the table")
    parser.add_argument("--singles", type=int, default=500, help="single texts timed")
    parser.add_argument("--pause", type=float, default=0, help="seconds at most between two requests, in memory")
    parser.add_argument("--output", default="overload", help="name of the JSON file in benchmarks/results; - for none")
    return parser.parse_args()


def play(name: str, artifact: Path, plan: LoadPlan) -> list[Finding]:
    """Runs the scenario `name` against a server that it starts."""
    if name in OWN_SERVERS:
        return asyncio.run(OWN_SERVERS[name](artifact, plan))
    with ServiceProcess({"BERT_MODEL": str(artifact)} | SETTINGS.get(name, {})) as process:
        return asyncio.run(SCENARIOS[name](Target(port=process.port, pid=process.process.pid), plan))


def export_bundled(artifact: Path) -> Path:
    export(SAMPLE, artifact, precision="fp32")
    return artifact


def report(findings: list[Finding]) -> str:
    holds = {None: "", True: "yes", False: "NO"}
    rows = [
        [finding.scenario, finding.what, finding.measured, finding.bound, holds[finding.holds]] for finding in findings
    ]
    return table(["scenario", "what", "measured", "must be", "holds"], rows)


if __name__ == "__main__":
    main()
