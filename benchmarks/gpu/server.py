"""The whole server: requests a second by the number of workers, which share the device, and the waiting time at a tenth
of the best rate."""

import random
from pathlib import Path
from typing import Any

from benchmarks.harness import mixes
from benchmarks.harness.client import percentile, post
from benchmarks.harness.machine import table
from benchmarks.server.client_processes import client_processes
from benchmarks.server.processes import Load, as_table, measure_workers, running

QUIET_SHARE = 0.1  # of the best rate with one text a request
LIMITS_MS = {"p50 ms": (0.5, 2.5), "p99 ms": (0.99, 5.0)}
REQUESTS = 512  # different requests


def measure_server(artifact: Path, device: str, load: Load, processes: int) -> dict[str, Any]:
    """`rates`: a Finding for each number of workers and texts; `latency`: at a tenth of the best rate.

    The client's `processes` share the machine with the server.
    """
    settings = {"BERT_MODEL": str(artifact), "BERT_DEVICE": device}
    with client_processes(processes) as clients:
        rates = measure_workers(settings, load, build_requests, clients)
        print("\n" + as_table(rates))
        alone = [finding for finding in rates if finding["texts"] == load.texts[0]]
        best = max(alone, key=lambda finding: float(finding["requests_per_second"]))
        rate = QUIET_SHARE * best["requests_per_second"]
        with running(settings, best["workers"]) as service:
            clients.open_loop(service.port, build_requests(1), rate=rate, seconds=min(1.0, load.seconds))  # warms up
            stream = clients.open_loop(service.port, build_requests(1), rate=rate, seconds=load.seconds)
    waits = {name: percentile(stream.answered, share) for name, (share, _) in LIMITS_MS.items()}
    rows = [[name, wait, LIMITS_MS[name][1]] for name, wait in waits.items()]
    print("\n" + table(["one text a request, at a tenth", "measured", "limit"], rows))
    return {"rates": rates, "latency": {"workers": best["workers"], "offered": rate, "achieved": stream.rate} | waits}


def build_requests(texts: int) -> list[bytes]:
    """Requests with texts of STS-B's lengths, in words of the random checkpoints' vocabulary, one token each."""
    draw = random.Random(12)

    def text() -> str:
        return " ".join(f"w{draw.randrange(5, 1024)}" for _ in range(draw.choice(mixes.STS_B) - 2))

    return [
        post("/embed", {"inputs": [text() for _ in range(texts)]}, accept="application/x-npy")
        for _ in range(max(1, REQUESTS // texts))
    ]
