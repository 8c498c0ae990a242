"""`python -m benchmarks.server.overload`: a real server process under load; what was measured, and what must hold.

    idle         one request at a time: the time that is neither tokenizing nor the run
    fairness     single short texts beside a client that posts 2,000 texts again and again
    overload     10 times the knee, open loop: goodput, refusals, seconds until single texts are as fast as before
    mixups       100,000 concurrent answers against a table computed alone
    disconnects  half of the clients disconnect at random times
    memory       mixed lengths for minutes

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
from benchmarks.server import scenarios
from benchmarks.server.scenarios import Finding, LoadPlan, Target
from packbert.model_export.export import export

SCENARIOS = {
    one.__name__: one
    for one in (
        scenarios.idle,
        scenarios.fairness,
        scenarios.overload,
        scenarios.mixups,
        scenarios.disconnects,
        scenarios.memory,
    )
}
SETTINGS = {
    "overload": {"BERT_MAX_WAIT_SECONDS": "1"},  # the limit decides how soon single texts are as fast as before
    "mixups": {"BERT_MAX_WAIT_SECONDS": "60"},  # so that no request is refused on a busy machine
}
HOLDS = {None: "", True: "yes", False: "NO"}


def main() -> None:
    arguments = parse_arguments()
    plan = LoadPlan(**{field.name: getattr(arguments, field.name) for field in fields(LoadPlan)})
    random.seed(5)
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        artifact = os.environ.get("BERT_MODEL") or f"{folder}/artifact"
        if "BERT_MODEL" not in os.environ:
            export(SAMPLE, Path(artifact), precision="fp32")
        for name in arguments.scenarios or SCENARIOS:
            print(f"{name} ...", flush=True)
            with ServiceProcess({"BERT_MODEL": artifact} | SETTINGS.get(name, {})) as process:
                target = Target(port=process.port, pid=process.process.pid)
                findings += asyncio.run(SCENARIOS[name](target, plan))
            rows = [[one.scenario, one.what, one.measured, one.bound, HOLDS[one.holds]] for one in findings]
            print(table(["scenario", "what", "measured", "must be", "holds"], rows), flush=True)
    if arguments.output != "-":
        write(arguments.output, [asdict(finding) for finding in findings], details={"plan": asdict(plan)})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)}; all when none is named")
    parser.add_argument("--seconds", type=float, default=60, help="of overload")
    parser.add_argument("--minutes", type=float, default=30, help="of mixed lengths in memory")
    parser.add_argument("--answers", type=int, default=100_000, help="compared with the table")
    parser.add_argument("--singles", type=int, default=500, help="single texts timed")
    parser.add_argument("--pause", type=float, default=0, help="seconds at most between two requests, in memory")
    parser.add_argument("--output", default="overload", help="name of the JSON file in benchmarks/results; - for none")
    return parser.parse_args()


if __name__ == "__main__":
    main()
