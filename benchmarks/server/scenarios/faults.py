"""Scenarios that need a server of their own: one that receives SIGTERM, one whose artifact has a poisoned word."""

import asyncio
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.harness.client import RESET, Connection, metrics, post
from benchmarks.harness.poison import poison_word
from benchmarks.harness.process import ServiceProcess
from benchmarks.server.scenarios.findings import Finding, LoadPlan, random_text

EXIT_SECONDS = 60.0
SIGTERM_CLIENTS, POISON_CLIENTS = 16, 24
POISONED_REQUEST, POISONED_TEXT = 567, 4


async def sigterm(artifact: Path, plan: LoadPlan) -> list[Finding]:
    """Sends SIGTERM to a server under load: every request that arrived must be answered, and the exit code be 0."""
    statuses: Counter[int] = Counter()
    codes: Counter[int] = Counter()
    slowest = 0.0
    for _ in range(plan.times):
        with ServiceProcess({"BERT_MODEL": str(artifact)}) as process:
            clients = [asyncio.create_task(_ask_until_refused(process.port)) for _ in range(SIGTERM_CLIENTS)]
            await asyncio.sleep(random.uniform(0.3, 1.0))
            began = time.monotonic()
            process.process.send_signal(signal.SIGTERM)
            codes[await asyncio.to_thread(process.process.wait, EXIT_SECONDS)] += 1
            slowest = max(slowest, time.monotonic() - began)
            for each in await asyncio.gather(*clients):
                statuses += each
    other = statuses.total() - statuses[200] - statuses[503] - statuses[RESET]
    reset, failed = statuses[RESET], plan.times - codes[0]
    return [
        Finding("sigterm", "SIGTERM sent, times", float(plan.times)),
        Finding("sigterm", "requests answered", float(statuses[200])),
        Finding("sigterm", "requests answered 503", float(statuses[503])),
        Finding("sigterm", "answers with other statuses", float(other)),
        Finding("sigterm", "connections ended without an answer", float(reset), "0", reset == 0),
        Finding("sigterm", "exit codes other than 0", float(failed), "0", failed == 0),
        Finding("sigterm", "longest time from signal to exit, s", slowest),
    ]


async def _ask_until_refused(port: int) -> Counter[int]:
    """Sends one request after another on one connection, and stops at the first status other than 200."""
    connection, statuses = Connection(port), Counter[int]()
    request = post("/embed", {"inputs": [random_text(30) for _ in range(20)]}, accept="application/x-npy")
    while statuses.total() == statuses[200]:
        outcome = await connection.ask(request)
        statuses[outcome.status] += 1
    connection.close()
    return statuses


async def poison(artifact: Path, _: LoadPlan) -> list[Finding]:
    """10,000 texts in requests of ten from 24 clients; one text holds a word whose embedding is not a number."""
    with tempfile.TemporaryDirectory() as folder:
        word = poison_word(artifact, Path(folder) / "poisoned")[0]
        requests = [[random_text(random.randint(3, 40)) for _ in range(10)] for _ in range(1000)]
        requests[POISONED_REQUEST][POISONED_TEXT] += f" {word}"
        with ServiceProcess({"BERT_MODEL": str(Path(folder) / "poisoned")}) as process:
            statuses = await _send_all(process.port, requests)
            after = await metrics(process.port)
    failed = [n for n, status in enumerate(statuses) if status != 200]
    return [
        Finding("poison", "texts sent", float(10 * len(requests))),
        Finding("poison", "requests that failed", float(len(failed)), "1", failed == [POISONED_REQUEST]),
        Finding("poison", "runs that failed", after["bert_failed_runs_total"]),
    ]


async def _send_all(port: int, requests: list[list[str]]) -> list[int]:
    """The status of each request."""
    statuses = [RESET] * len(requests)
    todo = list(range(len(requests)))

    async def client() -> None:
        connection = Connection(port)
        while todo:
            number = todo.pop()
            request = post("/embed", {"inputs": requests[number]}, accept="application/x-npy")
            statuses[number] = (await connection.ask(request)).status
        connection.close()

    await asyncio.gather(*(client() for _ in range(POISON_CLIENTS)))
    return statuses
