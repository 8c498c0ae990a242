"""The time of single short requests: on an idle server, and beside a client that sends bulk requests."""

import asyncio
import itertools
import multiprocessing
import random
import socket
import time

import numpy as np

from benchmarks.harness.client import Connection, Outcome, metrics, percentile, post
from benchmarks.harness.streams import closed_loop
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, increase, random_text

BULK_SECONDS = 600.0  # at most; the bulk client is ended as soon as the single texts have been timed


async def idle(target: Target, plan: LoadPlan) -> list[Finding]:
    """One request at a time on a blocking socket, so that the client's own share of the time is small."""
    request, others, totals = post("/embed", {"inputs": "my dog is hairy"}), [], []
    with socket.create_connection(("127.0.0.1", target.port)) as connection:
        for _ in range(plan.singles):
            began = time.perf_counter()
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"]]"):
                answer += connection.recv(2**20)
            total = 1000 * (time.perf_counter() - began)
            timing = Outcome(200, total, *answer.split(b"\r\n\r\n", 1)).timing
            totals.append(total)
            others.append(total - timing[b"tokenize"] - timing[b"forward"])
    median = float(np.median(others[len(others) // 5 :]))
    return [
        Finding("idle", "single request, median ms", float(np.median(totals[len(totals) // 5 :]))),
        Finding("idle", "outside tokenizing and the run, median ms", median, "<= 1", median <= 1),
    ]


async def fairness(target: Target, plan: LoadPlan) -> list[Finding]:
    """Single short texts, first alone, then beside a client that posts 2,000 texts again and again."""
    alone = await time_single_texts(target.port, plan.singles)
    bulk = multiprocessing.get_context("spawn").Process(target=_bulk_client, args=(target.port,), daemon=True)
    bulk.start()
    await asyncio.sleep(2)
    before = await metrics(target.port)
    beside = await time_single_texts(target.port, plan.singles)
    after = await metrics(target.port)
    bulk.terminate()
    bulk.join()
    seconds, runs = (increase(before, after, f"bert_forward_seconds_{part}") for part in ("sum", "count"))
    batch = 1000 * seconds / runs
    bound = 2 * percentile(alone, 0.99) + batch
    found = percentile(beside, 0.99)
    return [
        Finding("fairness", "single texts alone, p99 ms", percentile(alone, 0.99)),
        Finding("fairness", "one batch beside the bulk client, ms", batch),
        Finding("fairness", "single texts beside a bulk client, p50 ms", percentile(beside, 0.5)),
        Finding("fairness", "single texts beside a bulk client, p99 ms", found, f"<= {bound:.3g}", found <= bound),
    ]


async def time_single_texts(port: int, count: int) -> list[float]:
    """Seconds of each of `count` short requests, one after another with short pauses."""
    connection, seconds = Connection(port), []
    for _ in range(count):
        outcome = await connection.ask(post("/embed", {"inputs": random_text(6)}))
        assert outcome.status == 200, outcome
        seconds.append(outcome.seconds)
        await asyncio.sleep(random.uniform(0, 0.04))
    connection.close()
    return seconds


def _bulk_client(port: int) -> None:
    """Runs in a process of its own: reading a response of 2 MB would delay the clock of the single texts."""
    requests = [
        post("/embed", {"inputs": [random_text(20) for _ in range(2000)]}, accept="application/x-npy") for _ in range(4)
    ]
    asyncio.run(closed_loop(port, itertools.cycle(requests), connections=1, seconds=BULK_SECONDS))
