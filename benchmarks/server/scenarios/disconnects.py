"""Clients that disconnect before they have their answer: what the server still computes, and what stays behind."""

import asyncio
import random
from collections import Counter

from benchmarks.harness.client import RESET, Connection, metrics, post
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, increase, random_text

CLIENTS = 300
LEAVING_SECONDS = 4.0  # within which half of the clients disconnect
ANSWER_SECONDS = 120.0


async def disconnects(target: Target, _: LoadPlan) -> list[Finding]:
    """300 concurrent clients, each with 40 texts of 60 words; half disconnect within the time that the others need."""
    before = await metrics(target.port)
    request = post("/embed", {"inputs": [random_text(60)] * 40}, accept="application/x-npy")

    async def client(leaves: bool) -> int:
        connection = Connection(target.port)
        try:
            async with asyncio.timeout(random.uniform(0.0, LEAVING_SECONDS) if leaves else ANSWER_SECONDS):
                status = (await connection.ask(request)).status
        except TimeoutError:
            status = RESET
        connection.close()
        return status

    statuses = Counter(await asyncio.gather(*(client(n % 2 == 0) for n in range(CLIENTS))))
    after = await metrics(target.port)
    per_request = increase(before, after, "bert_tokens_total") / max(1, statuses[200])
    queued, in_flight = after["bert_waiting_tokens"], after["bert_inflight_requests"]
    return [
        Finding("disconnects", "clients answered", float(statuses[200])),
        Finding("disconnects", "clients disconnected", float(statuses[RESET])),
        Finding("disconnects", "requests refused", float(statuses[429])),
        Finding("disconnects", "tokens run for each answer", per_request),
        Finding("disconnects", "tokens still queued", queued, "0", queued == 0),
        Finding("disconnects", "requests still in flight", in_flight, "0", in_flight == 0),
        Finding("disconnects", "requests received minus requests finished", _balance(after), "0", _balance(after) == 0),
    ]


def _balance(values: dict[str, float]) -> float:
    """Requests that the queue has received, less those that it counted as finished or still holds: 0."""
    counts = {
        name.split('"')[1]: value for name, value in values.items() if name.startswith("bert_queue_requests_total")
    }
    return counts.pop("received") - sum(counts.values()) - values["bert_inflight_requests"]
