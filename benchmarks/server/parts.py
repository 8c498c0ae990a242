"""`python -m benchmarks.server.parts ARTIFACT`: what the parts of a request cost, without the model.

The service runs around a model that computes nothing (`sampled_null_model.py`), and a closed loop sends it one text of
STS-B's lengths a request. First its processor time a request is measured. Then its Python stack is counted every 4 ms
of processor time. A sample counts for the part of its innermost function that has one.
"""

import argparse
import asyncio
import itertools
import re
import signal
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import ARTIFACT_HELP, artifact_to_serve
from benchmarks.harness.client import post
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Stream, closed_loop, cost
from benchmarks.server.__main__ import random_texts

PARTS = {  # by a pattern of the function and its file, the innermost first
    "the null model": r"NullRunner",
    "writing the response": r"Exchange\.(send|_begin)|exchange\.py.*_count",
    "tokenizing": r"service/tokenization/",
    "JSON of the response": r"json_bytes",
    "validation": r"http/(body|validation)\.py|pydantic",
    "metrics": r"service/observability/|prometheus_client/|_count_answer",
    "admission, queue, batches": r"service/scheduling/",
    "the task": r"service/tasks/",
    "endpoint: headers, body, times": r"service/http/(endpoint|headers|responses|app)\.py",
    "HTTP: parsing, scope, task": r"service/http/(connection|exchange)\.py",
}
OTHER = "other"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=artifact_to_serve, help=ARTIFACT_HELP)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--checkout", type=Path, default=Path(__file__).parents[2], help="of the service to profile")
    parser.add_argument("--name", default="now", help="of the result in benchmarks/results/parts.json")
    asked = parser.parse_args()
    texts = random_texts(asked.artifact, mixes.STS_B, count=512)
    requests = itertools.cycle([post("/embed", {"inputs": text}) for text in texts])
    settings = {"BERT_MODEL": str(asked.artifact.resolve()), "BERT_LOG_LEVEL": "warning"}
    settings |= {"PYTHONPATH": str(asked.checkout.resolve()), "PYTHONSAFEPATH": "1"}
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples"
        settings |= {"SAMPLES": str(samples)}
        with ServiceProcess(settings, module="benchmarks.harness.sampled_null_model") as service:

            def run(seconds: float) -> Stream:
                loop = closed_loop(service.port, requests, connections=asked.connections, seconds=seconds)
                return asyncio.run(loop).must_be()

            run(2)  # warms up
            _, spent = cost(service.process.pid, lambda: run(asked.seconds / 2))
            service.process.send_signal(signal.SIGUSR2)
            run(asked.seconds)
            service.terminate()  # the process writes its samples at its end
        shares = divide(samples.read_text())
    result = {part: share * spent["process"] for part, share in shares.items()} | {"all": spent["process"]}
    print(table(["us a request", asked.name], [[part, us] for part, us in result.items()]))
    update("parts", {asked.name: result}, details={"connections": asked.connections, "seconds": asked.seconds})


def divide(samples: str) -> dict[str, float]:
    """The share of each part in lines of a stack, outermost function first, and its count."""
    counts = Counter[str]()
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        counts[_part(stack.split(";"))] += int(count)
    return {part: counts[part] / counts.total() for part in (*PARTS, OTHER)}


def _part(stack: list[str]) -> str:
    for function in reversed(stack):
        for part, pattern in PARTS.items():
            if re.search(pattern, function):
                return part
    return OTHER


if __name__ == "__main__":
    main()
