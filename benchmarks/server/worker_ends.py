"""`python -m benchmarks.server.worker_ends MODEL`: what a worker's end under load costs, for each way in which it ends.

A closed loop sends short texts all the time; a worker is killed, as by a lack of memory, or stopped: it hangs. Found:
requests that failed, the longest time in which no request was answered, and seconds until all workers serve again.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.client import Connection, get, percentile, post
from benchmarks.harness.machine import update
from benchmarks.harness.process import ServiceProcess
from benchmarks.server.processes import serving_workers

TEXTS = ["my dog is hairy", "it rains", "a text of a few more words than the others have"]
CONNECTED = "01"  # the state of a connection in /proc/net/tcp
LOOK_SECONDS = 0.02
RECONNECT = 20  # answers between two new connections
AGAIN_SECONDS = 120.0  # within which a worker serves again
PAUSE_SECONDS = 11.0  # after which a restart is at once: shorter runs count as a crash loop


SHARES = {"median": 0.5, "longest": 1.0}
ENDS: dict[str, Callable[[int], None]] = {
    "kill": lambda worker: os.kill(worker, signal.SIGKILL),
    "stop": lambda worker: os.kill(worker, signal.SIGSTOP),
}


@dataclass(slots=True)
class Finding:
    """What the ends of one kind cost together."""

    end: str
    times: int = 0
    survived: int = 0  # times that the worker went on
    statuses: Counter[int] = field(default_factory=Counter)  # 0: the connection ended without an answer
    most_failed: int = 0  # of one end
    beyond_own: int = 0  # failed requests beyond the connections that the worker had
    longest_gap_ms: float = 0.0  # between two answers with status 200
    again_seconds: list[float] = field(default_factory=list)  # from the signal until the new worker answers

    def row(self) -> dict[str, Any]:
        again = {share: percentile(self.again_seconds, rank) / 1000 for share, rank in SHARES.items()}
        return {
            "times": self.times,
            "survived": self.survived,
            "statuses": dict(sorted(self.statuses.items())),
            "most failed of one end": self.most_failed,
            "failed beyond its connections": self.beyond_own,
            "longest gap between answers, ms": self.longest_gap_ms,
            "seconds until it serves again": again,
        }


async def measure(service: ServiceProcess, end: str, options: argparse.Namespace) -> Finding:
    finding, ending = Finding(end), asyncio.Event()
    answered: list[float] = [time.monotonic()]
    clients = [asyncio.create_task(_ask(service.port, finding, answered, ending)) for _ in range(options.connections)]
    for number in range(options.times):
        await asyncio.sleep(options.pause)
        workers = serving_workers(service, options.workers)
        victim, before = workers[number % len(workers)], finding.statuses.copy()
        own, began = _count_connections(victim, service.port), time.monotonic()
        ENDS[end](victim)
        if await _serves_again(service, workers):
            finding.again_seconds.append(round(time.monotonic() - began, 2))
        else:
            finding.survived += 1
        since = finding.statuses - before
        failed = since.total() - since[200]
        finding.most_failed = max(finding.most_failed, failed)
        finding.beyond_own += max(0, failed - own)
        finding.times += 1
    ending.set()
    await asyncio.gather(*clients)
    finding.longest_gap_ms = round(1000 * max(late - early for early, late in pairwise(answered)), 1)
    return finding


async def _ask(port: int, finding: Finding, answered: list[float], ending: asyncio.Event) -> None:
    connection, request = Connection(port), post("/embed", {"inputs": TEXTS})
    while not ending.is_set():
        if finding.statuses.total() % RECONNECT == 0:  # so that the workers have as many connections again
            connection.close()
        outcome = await connection.ask(request)
        finding.statuses[outcome.status] += 1
        if outcome.status == 200:
            answered.append(time.monotonic())
    connection.close()


async def _serves_again(service: ServiceProcess, before: list[int]) -> bool:
    """Waits until a new process has accepted a connection; false if none has in AGAIN_SECONDS."""
    end = time.monotonic() + AGAIN_SECONDS
    while time.monotonic() < end:
        new = set(serving_workers(service, len(before))) - set(before)
        opened = [Connection(service.port) for _ in before] if new else []
        for connection in opened:
            await connection.ask(get("/health"))
        found = any(_count_connections(pid, service.port) for pid in new)
        for connection in opened:
            connection.close()
        if found:
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False


def _count_connections(process: int, port: int) -> int:
    """Open connections of a process to `port`."""
    rows = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == CONNECTED}
    try:
        return sum(str(one.readlink()) in inodes for one in Path(f"/proc/{process}/fd").iterdir())
    except OSError:  # it has just ended
        return 0


async def run(options: argparse.Namespace) -> list[Finding]:
    settings = {"BERT_MODEL": str(options.model.resolve()), "BERT_DEVICE": options.device}
    findings = []
    for end in options.ends:
        with ServiceProcess(settings | {"BERT_WORKERS": str(options.workers)}) as service:
            findings.append(await measure(service, end, options))
        print(end, json.dumps(findings[-1].row()), flush=True)
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of an artifact")
    parser.add_argument("--ends", nargs="+", choices=list(ENDS), default=list(ENDS))
    parser.add_argument("--times", type=int, default=20, help="of each end")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--pause", type=float, default=PAUSE_SECONDS, help="seconds before each end")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--output", default="worker_ends", help="name of the JSON file in benchmarks/results; - for none"
    )
    options = parser.parse_args()
    findings = asyncio.run(run(options))
    if options.output != "-":
        update(options.output, {finding.end: finding.row() for finding in findings}, details={})
    if any(set(finding.statuses) - {200, 0} for finding in findings):
        sys.exit("a request was answered with another status than 200")


if __name__ == "__main__":
    main()
