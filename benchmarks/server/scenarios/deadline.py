"""Requests that cannot be answered within their deadline: when do they get their answer?"""

import asyncio
from collections import Counter

from benchmarks.harness.client import Connection, percentile, post
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, random_text

DEADLINE_MS, GRACE_MS = 100, 100
TIMES, AT_ONCE = 5, 4
MIDDLE_CHARACTERS, BESIDE_SECONDS = 1200, 8.0


async def deadline(target: Target, _: LoadPlan) -> list[Finding]:
    """Large requests with a deadline of 100 ms, one and four at a time; a text of 1,200 characters beside such."""
    long = (random_text(25_000))[:100_000]
    bodies = {
        "26 texts of 100,000 characters": {"inputs": [long] * 26},
        "the same, truncated": {"inputs": [long] * 26, "truncate": True},
        "the same without spaces, truncated": {"inputs": [long.replace(" ", "")] * 26, "truncate": True},
        "500 texts of 100 words": {"inputs": [random_text(100) for _ in range(500)]},
    }
    findings = []
    for name, body in bodies.items():
        request = post("/embed", body, **{"accept": "application/x-npy", "x-request-timeout-ms": str(DEADLINE_MS)})
        for clients in (1, AT_ONCE):
            seconds, statuses = await _ask_at_once(target.port, request, clients)
            longest, limit = 1000 * max(seconds), DEADLINE_MS + GRACE_MS
            what = f"{name}, {clients} at a time ({'/'.join(map(str, sorted(statuses)))}): longest answer, ms"
            findings.append(Finding("deadline", what, longest, f"<= {limit}", longest <= limit))
    beside = await _middle_beside_large(target.port, post("/embed", bodies["the same, truncated"]))
    return [
        *findings,
        Finding("deadline", "a text of 1,200 characters beside four such clients, p50 ms", percentile(beside, 0.5)),
        Finding("deadline", "a text of 1,200 characters beside four such clients, longest ms", 1000 * max(beside)),
    ]


async def _ask_at_once(port: int, request: bytes, clients: int) -> tuple[list[float], Counter[int]]:
    """The seconds of every answer, and the statuses."""
    connections = [Connection(port) for _ in range(clients)]
    outcomes = [
        outcome
        for _ in range(TIMES)
        for outcome in await asyncio.gather(*(connection.ask(request) for connection in connections))
    ]
    for connection in connections:
        connection.close()
    return [outcome.seconds for outcome in outcomes], Counter(outcome.status for outcome in outcomes)


async def _middle_beside_large(port: int, large: bytes) -> list[float]:
    """Seconds of requests with one text of 1,200 characters beside clients that send `large` again and again."""

    async def client() -> None:
        connection = Connection(port)
        while True:
            await connection.ask(large)

    clients = [asyncio.create_task(client()) for _ in range(AT_ONCE)]
    connection = Connection(port)
    seconds: list[float] = []
    request = post("/embed", {"inputs": random_text(400)[:MIDDLE_CHARACTERS], "truncate": True})
    async with asyncio.timeout(BESIDE_SECONDS * 10):
        while sum(seconds) < BESIDE_SECONDS:
            seconds.append((await connection.ask(request)).seconds)
    for task in clients:
        task.cancel()
    await asyncio.wait(clients)
    connection.close()
    return seconds
