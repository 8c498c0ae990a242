"""How long a second client waits while the server receives, parses and refuses or answers one request of 8 MB."""

import multiprocessing
import socket
import statistics
import time
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress

from benchmarks.harness.client import get, post
from benchmarks.server.scenarios.bodies import REQUESTS
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target

TURNS = 5  # each with and without the request; the median of the longest waits counts
QUIET_SECONDS = 0.5
PAUSE_SECONDS = 0.001
MORE_MS = 20.0  # that a second client may wait at most
ANSWER_SECONDS = 60.0
PROBES = {"/health": get("/health"), "/embed": post("/embed", {"inputs": "my dog"})}


async def large_requests(target: Target, _: LoadPlan) -> list[Finding]:
    """For each kind of request, the longest wait of a client that asks for /health again and again, and of one that
    sends one short text (whose wait includes the runs of the large request before it)."""
    findings = []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as sender:
        for name in REQUESTS:
            waits: dict[str, list[tuple[float, float]]] = {path: [] for path in PROBES}
            status = 0
            for path, probe in PROBES.items():
                sender.submit(_build, name).result()
                for _turn in range(TURNS):
                    without = _longest_wait(target.port, probe, None)
                    sent = sender.submit(_send, target.port)
                    waits[path].append((without, _longest_wait(target.port, probe, sent)))
                    status = sent.result()
            for path, pairs in waits.items():
                alone, beside = (statistics.median(side) for side in zip(*pairs, strict=True))
                bound = alone + MORE_MS if path == "/health" else None
                findings.append(
                    Finding(
                        "large-requests",
                        f"{name} ({status}): longest wait for {path}, ms; alone {alone:.3g}",
                        beside,
                        "" if bound is None else f"<= {bound:.3g}",
                        None if bound is None else beside <= bound,
                    )
                )
    return findings


_request = b""  # in the sender's process


def _build(name: str) -> None:
    global _request
    _request = REQUESTS[name]()


def _send(port: int) -> int:
    """The status of the answer, 0 for none."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as connection, suppress(OSError):
        with suppress(OSError):  # refused, and closed, before all has been sent
            connection.sendall(_request)
        answer = connection.recv(2**16)
    return int(answer[9:12] or 0)


def _longest_wait(port: int, probe: bytes, beside: "Future[int] | None") -> float:
    """Milliseconds: until `beside` is done, at least for QUIET_SECONDS."""
    longest, end = 0.0, time.perf_counter() + QUIET_SECONDS
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while time.perf_counter() < end or not (beside is None or beside.done()):
            began = time.perf_counter()
            connection.sendall(probe)
            connection.recv(2**16)
            longest = max(longest, time.perf_counter() - began)
            time.sleep(PAUSE_SECONDS)
    return 1000 * longest
