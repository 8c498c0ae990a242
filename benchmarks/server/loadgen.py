"""`python -m benchmarks.server.loadgen ARTIFACT`: MLPerf's LoadGen against the server over HTTP, one text a request.

    Offline   all texts at once; LoadGen counts samples a second
    Server    Poisson arrivals at a share of the Offline rate; a wait counts from the moment of the intended query

Tokenizing is included. A scenario takes `--seconds`, by default less than the official minimum of 600 s, so that
LoadGen's verdict on the length of the run is not official.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlperf_loadgen as loadgen

from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import ARTIFACT_HELP, artifact_to_serve
from benchmarks.harness.client import ANSWER_SECONDS, Pool
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import closed_loop
from benchmarks.server.__main__ import MIXES, REQUEST_FORMS, random_texts

OFFLINE_CONCURRENCY = 64  # requests in flight in the Offline scenario; the Server scenario has no limit
TARGET_MS = 130.0  # of MLPerf's BERT in its Server scenario, at p99
SUMMARY = {  # our name -> LoadGen's, by scenario
    "Offline": {"samples/s": "Samples per second"},
    "Server": {"scheduled/s": "Scheduled samples per second", "completed/s": "Completed samples per second"},
}
WAITS = {"p50 ms": "50.00", "p90 ms": "90.00", "p99 ms": "99.00", "p99.9 ms": "99.90"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=artifact_to_serve, help=ARTIFACT_HELP)
    parser.add_argument("--mix", default="STS-B", help="only the mixes whose name contains this")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each scenario, at least")
    parser.add_argument("--share", type=float, default=0.7, help="of the Offline rate, offered in the Server scenario")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with ServiceProcess({"BERT_MODEL": str(arguments.artifact)}) as server:
        for name, lengths in mixes.MIXES.items():
            if name.startswith(MIXES) and arguments.mix in name:
                requests = [REQUEST_FORMS["npy"](text) for text in random_texts(arguments.artifact, lengths, count=512)]
                results[name] = measure_mix(server.port, requests, seconds=arguments.seconds, share=arguments.share)
    for kind in SUMMARY:
        rows = [[name, *result[kind].values()] for name, result in results.items()]
        print("\n" + table([kind, *next(iter(results.values()))[kind]], rows))
    details = {"artifact": arguments.artifact.name, "seconds": arguments.seconds}
    update(f"loadgen-{arguments.artifact.name}", results, details=details)


def measure_mix(port: int, requests: Sequence[bytes], *, seconds: float, share: float) -> dict[str, Any]:
    """Both scenarios; the Server scenario offers `share` of the Offline rate."""
    loop = closed_loop(port, itertools.cycle(requests), connections=OFFLINE_CONCURRENCY, seconds=3.0)
    guess = asyncio.run(loop).must_be().rate
    offline = scenario("Offline", port, requests, seconds=seconds, rate=1.2 * guess)
    rate = share * offline["samples/s"]
    return {"Offline": offline, "Server": scenario("Server", port, requests, seconds=seconds, rate=rate)}


class Client:
    """The system under test for LoadGen: sends the samples over HTTP on a thread of its own."""

    def __init__(self, port: int, requests: Sequence[bytes], *, concurrency: int) -> None:
        self.slots = asyncio.Semaphore(concurrency)
        self.requests, self.pool, self.loop = requests, Pool(port), asyncio.new_event_loop()
        self.refused = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def issue(self, samples: Sequence[Any]) -> None:
        asked = [(sample.id, sample.index) for sample in samples]
        self.loop.call_soon_threadsafe(self._start, asked)

    def _start(self, asked: Sequence[tuple[int, int]]) -> None:
        for number, index in asked:
            task = self.loop.create_task(self._ask(number, self.requests[index]))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _ask(self, number: int, request: bytes) -> None:
        """After the first refusal no more requests are sent: the run is void, but LoadGen waits for every sample."""
        async with self.slots:
            if not self.refused:
                self.refused += await self._is_refused(request)
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0)])

    async def _is_refused(self, request: bytes) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return (await self.pool.ask(request)).status != 200
        except TimeoutError:
            return True

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join()
            self.pool.close()


def scenario(kind: str, port: int, requests: Sequence[bytes], *, seconds: float, rate: float) -> dict[str, Any]:
    """LoadGen's own summary of one run; raises SystemExit if a request was refused, since a refusal is quick."""
    client = Client(port, requests, concurrency=OFFLINE_CONCURRENCY if kind == "Offline" else sys.maxsize)
    settings = loadgen.TestSettings()
    settings.scenario, settings.mode = getattr(loadgen.TestScenario, kind), loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count = int(1000 * seconds), 1
    settings.server_target_qps, settings.offline_expected_qps = rate, rate
    settings.server_target_latency_ns, settings.server_target_latency_percentile = int(1e6 * TARGET_MS), 0.99
    log = loadgen.LogSettings()
    with tempfile.TemporaryDirectory() as folder, client.running():
        log.log_output.outdir, log.log_output.copy_summary_to_stdout = folder, False
        system = loadgen.ConstructSUT(client.issue, lambda: None)
        library = loadgen.ConstructQSL(len(requests), len(requests), lambda samples: None, lambda samples: None)
        loadgen.StartTestWithLogSettings(system, library, settings, log)
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)
        text = (Path(folder) / "mlperf_log_summary.txt").read_text()
    if client.refused:
        raise SystemExit(f"{client.refused} requests were refused in the {kind} scenario: offer less")
    return summary(kind, text)


def summary(kind: str, text: str) -> dict[str, Any]:
    """Rates, waits in ms and the verdict on the target latency, from LoadGen's lines of `name : value`."""
    lines = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    waits = {ours: float(lines[f"{theirs} percentile latency (ns)"]) / 1e6 for ours, theirs in WAITS.items()}
    rates = {ours: float(lines[theirs]) for ours, theirs in SUMMARY[kind].items()}
    return rates | waits | {"result": lines["Result is"]}


if __name__ == "__main__":
    main()
