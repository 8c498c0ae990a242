"""The loads of `benchmarks.server.overload` that need a server of their own: one that is ended, one that is poisoned."""

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
from benchmarks.server.loads import Finding, LoadPlan, text


async def sigterm(artifact: Path, plan: LoadPlan) -> list[Finding]:
    statuses: Counter[int] = Counter()
    codes: Counter[int] = Counter()
    slowest = 0.0
    for _ in range(plan.times):
        with ServiceProcess({"BERT_ARTIFACT": str(artifact)}) as process:
            clients = [asyncio.create_task(_ask_until_told(process.port)) for _ in range(16)]
            await asyncio.sleep(random.uniform(0.3, 1.0))
            began = time.monotonic()
            process.process.send_signal(signal.SIGTERM)
            codes[await asyncio.to_thread(process.process.wait, 60)] += 1
            slowest = max(slowest, time.monotonic() - began)
            for each in await asyncio.gather(*clients):
                statuses += each
    return [
        Finding("sigterm", "SIGTERM sent, times", float(plan.times)),
        Finding("sigterm", "requests answered", float(statuses[200])),
        Finding("sigterm", "requests answered 503", float(statuses[503])),
        Finding(
            "sigterm",
            "answers with other statuses",
            float(statuses.total() - statuses[200] - statuses[503] - statuses[RESET]),
        ),
        Finding("sigterm", "connections ended without an answer", float(statuses[RESET]), "0", statuses[RESET] == 0),
        Finding("sigterm", "exit codes other than 0", float(plan.times - codes[0]), "0", codes[0] == plan.times),
        Finding("sigterm", "longest time from signal to exit, s", slowest),
    ]


async def _ask_until_told(port: int) -> Counter[int]:
    """One request after another on one connection; the first that is not answered with 200 is the last."""
    connection, statuses = Connection(port), Counter[int]()
    request = post("/embed", {"inputs": [text(30) for _ in range(20)]}, accept="application/x-npy")
    while statuses.total() == statuses[200]:
        outcome = await connection.ask(request)
        statuses[outcome.status] += 1
    connection.close()
    return statuses


async def poison(artifact: Path, _: LoadPlan) -> list[Finding]:
    """10,000 texts in requests of ten, from 24 clients; one text holds a word whose embedding is not a number."""
    with tempfile.TemporaryDirectory() as folder:
        word = poison_word(artifact, Path(folder) / "poisoned")[0]
        requests = [[text(random.randint(3, 40)) for _ in range(10)] for _ in range(1000)]
        requests[567][4] += f" {word}"
        with ServiceProcess({"BERT_ARTIFACT": str(Path(folder) / "poisoned")}) as process:
            statuses = await _ask_all(process.port, requests)
            after = await metrics(process.port)
    errors = [n for n, status in enumerate(statuses) if status != 200]
    return [
        Finding("poison", "texts sent", float(10 * len(requests))),
        Finding("poison", "requests that failed", float(len(errors)), "1", errors == [567]),
        Finding("poison", "runs that failed", after["bert_failed_runs_total"]),
    ]


async def _ask_all(port: int, requests: list[list[str]]) -> list[int]:
    statuses = [RESET] * len(requests)
    todo = list(range(len(requests)))

    async def client() -> None:
        connection = Connection(port)
        while todo:
            number = todo.pop()
            statuses[number] = (
                await connection.ask(post("/embed", {"inputs": requests[number]}, accept="application/x-npy"))
            ).status
        connection.close()

    await asyncio.gather(*(client() for _ in range(24)))
    return statuses
