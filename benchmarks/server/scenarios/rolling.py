"""A rolling restart of two instances behind clients that ask each /ready every 100 ms, as a load balancer does."""

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.client import Connection, ask_once, get, post
from benchmarks.harness.process import ServiceProcess
from benchmarks.server.scenarios.findings import Finding, LoadPlan, random_text

CLIENTS, POLL_SECONDS, PAUSE_SECONDS = 8, 0.1, 0.02
LINGER_SECONDS = 1.0
EXIT_SECONDS = 60.0


class Instance:
    """One service on a port that stays the same, and whether its last /ready was 200."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.process = ServiceProcess(settings)
        self.became_ready = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self.became_ready.is_set()

    async def poll(self) -> None:
        """Until cancelled."""
        while True:
            answer = await ask_once(self.process.port, get("/ready"))
            self.became_ready.set() if answer.status == 200 else self.became_ready.clear()
            await asyncio.sleep(POLL_SECONDS)

    async def restart(self) -> int:
        """The exit code."""
        self.process.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.process.process.wait, EXIT_SECONDS)
        await asyncio.to_thread(self.process.__enter__)
        return code


async def rolling(artifact: Path, plan: LoadPlan) -> list[Finding]:
    """Restarts one instance after the other until all requests have been sent; with one worker and with two."""
    return [one for workers in (1, 2) for one in await _roll(artifact, plan.rolling, workers)]


async def _roll(artifact: Path, requests: int, workers: int) -> list[Finding]:
    settings = {
        "BERT_MODEL": str(artifact),
        "BERT_WORKERS": str(workers),
        "BERT_LINGER_SECONDS": str(LINGER_SECONDS),
    }
    instances = [Instance(settings), Instance(settings)]
    statuses: Counter[int] = Counter()
    codes: list[int] = []
    with instances[0].process, instances[1].process:
        polling = [asyncio.create_task(each.poll()) for each in instances]
        await asyncio.gather(*(each.became_ready.wait() for each in instances))
        left = itertools.count(requests, -1)
        clients = [asyncio.create_task(_ask(instances, left, statuses)) for _ in range(CLIENTS)]
        for instance in itertools.cycle(instances):
            if all(client.done() for client in clients):
                break
            codes.append(await instance.restart())
            await instance.became_ready.wait()
        for each in polling:
            each.cancel()
    failed = statuses.total() - statuses[200]
    bad = sum(code != 0 for code in codes)
    name = f"rolling, {workers} workers"
    return [
        Finding(name, "requests sent", float(statuses.total())),
        Finding(name, "restarts", float(len(codes))),
        Finding(name, "requests that failed", float(failed), "0", failed == 0),
        Finding(name, "exit codes other than 0", float(bad), "0", bad == 0),
    ]


async def _ask(instances: list[Instance], left: "itertools.count[int]", statuses: Counter[int]) -> None:
    """One request after another, each to the next instance that is ready, on connections that are kept."""
    connections = [Connection(each.process.port) for each in instances]
    request = post("/embed", {"inputs": [random_text(20) for _ in range(4)]}, accept="application/x-npy")
    turn = 0
    while next(left) > 0:
        turn = next((number for number in (1 - turn, turn) if instances[number].ready), 1 - turn)
        statuses[(await connections[turn].ask(request)).status] += 1
        await asyncio.sleep(PAUSE_SECONDS)
    for connection in connections:
        connection.close()
