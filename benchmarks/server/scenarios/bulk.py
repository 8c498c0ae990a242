"""A hundred bulk requests at once beside single texts: is the model never idle, and do single texts wait?"""

import asyncio
import multiprocessing
import re
import time
from multiprocessing.connection import Connection as Pipe

from benchmarks.harness.client import Connection, metrics, percentile, post
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, increase, random_text
from benchmarks.server.scenarios.latency import time_single_texts

CONNECTIONS, TEXTS, WORDS_IN_TEXT = 100, 2048, 6
SECONDS = 20.0  # of load
MAX_PAUSE_SECONDS = 5.0  # of a refused client, whatever Retry-After says
SAMPLE_SECONDS = 0.1
RETRY_AFTER = re.compile(rb"retry-after: (\d+)")


async def bulk(target: Target, plan: LoadPlan) -> list[Finding]:
    """Goodput of 100 bulk connections against that of one; single texts and computed tokens meanwhile."""
    alone = await time_single_texts(target.port, plan.singles)
    one, _ = await _under_bulk_load(target, 1, plan.singles)
    before = await metrics(target.port)
    many, beside = await _under_bulk_load(target, CONNECTIONS, plan.singles)
    after = await metrics(target.port)
    seconds, runs = (increase(before, after, f"bert_forward_seconds_{part}") for part in ("sum", "count"))
    bound = 2 * percentile(alone, 0.99) + 1000 * seconds / runs
    rates = [TEXTS * found["answered"] / found["seconds"] for found in (one, many)]
    p99, goodput = percentile(beside, 0.99), rates[1] / max(1.0, rates[0])
    return [
        Finding("bulk", "one bulk connection, texts/s", rates[0]),
        Finding("bulk", f"{CONNECTIONS} bulk connections, texts/s", rates[1]),
        Finding("bulk", "goodput / that of one connection", goodput, ">= 0.9", goodput >= 0.9),
        Finding("bulk", "bulk requests refused", many["refused"]),
        Finding("bulk", "other statuses", many["other"], "0", many["other"] == 0),
        Finding("bulk", "longest time without a computed token, s", many["longest_pause"]),
        Finding("bulk", "single texts alone, p99 ms", percentile(alone, 0.99)),
        Finding("bulk", "single texts beside, p50 ms", percentile(beside, 0.5)),
        Finding("bulk", "single texts beside, p99 ms", p99, f"<= {bound:.3g}", p99 <= bound),
    ]


async def _under_bulk_load(target: Target, connections: int, singles: int) -> tuple[dict[str, float], list[float]]:
    """What became of the bulk requests, and the seconds of single texts beside them."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    clients = multiprocessing.get_context("spawn").Process(
        target=_bulk_clients, args=(target.port, connections, theirs), daemon=True
    )
    clients.start()
    await asyncio.to_thread(ours.recv)  # they are about to send
    sampling = asyncio.create_task(_longest_pause(target.port, time.monotonic() + SECONDS))
    beside = await time_single_texts(target.port, singles)
    longest = await sampling
    found: dict[str, float] = await asyncio.to_thread(ours.recv)
    clients.join()
    return found | {"longest_pause": longest}, beside


async def _longest_pause(port: int, end: float) -> float:
    """The longest time in which no token was computed."""
    longest, tokens, since = 0.0, -1.0, time.monotonic()
    while time.monotonic() < end:
        computed, now = (await metrics(port))["bert_tokens_total"], time.monotonic()
        longest = max(longest, now - since)
        if computed != tokens:
            tokens, since = computed, now
        await asyncio.sleep(SAMPLE_SECONDS)
    return longest


def _bulk_clients(port: int, connections: int, pipe: Pipe) -> None:
    """Runs in a process of its own; sends what it counted when the time is over."""
    request = post("/embed", {"inputs": [random_text(WORDS_IN_TEXT) for _ in range(TEXTS)]}, accept="application/x-npy")
    counted = {"answered": 0.0, "refused": 0.0, "other": 0.0}

    async def client(end: float) -> None:
        connection = Connection(port)
        while time.monotonic() < end:
            outcome = await connection.ask(request)
            name = {200: "answered", 429: "refused"}.get(outcome.status, "other")
            counted[name] += 1
            if stated := RETRY_AFTER.search(outcome.head):
                await asyncio.sleep(min(float(stated[1]), MAX_PAUSE_SECONDS, max(0.0, end - time.monotonic())))
        connection.close()

    async def load() -> None:
        pipe.send("ready")
        began = time.monotonic()
        await asyncio.gather(*(client(began + SECONDS) for _ in range(connections)))
        counted["seconds"] = time.monotonic() - began  # until the last of them is answered

    asyncio.run(load())
    pipe.send(counted)
