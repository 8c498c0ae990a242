"""Resident memory under minutes of mixed lengths."""

import asyncio
import random
import time

import numpy as np

from benchmarks.harness.client import Connection, post
from benchmarks.harness.process import resident_mib
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, random_text

CLIENTS = 8
SAMPLE_SECONDS = 2.0
LENGTHS = (1, 3, 8, 20, 60, 150, 300)  # words of a text
TEXTS_IN_A_REQUEST = (1, 1, 1, 5, 20)


async def memory(target: Target, plan: LoadPlan) -> list[Finding]:
    """Samples the server's resident memory every 2 s while 8 clients send requests."""
    end, resident = time.monotonic() + 60 * plan.minutes, []

    async def client() -> None:
        connection = Connection(target.port)
        while time.monotonic() < end:
            texts = [random_text(random.choice(LENGTHS)) for _ in range(random.choice(TEXTS_IN_A_REQUEST))]
            await connection.ask(post("/embed", {"inputs": texts}))
            await asyncio.sleep(random.uniform(0, plan.pause))
        connection.close()

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    while time.monotonic() < end:
        resident.append(resident_mib(target.pid))
        await asyncio.sleep(SAMPLE_SECONDS)
    await asyncio.gather(*clients)
    settled = resident[len(resident) // 6 :]  # without the first 5 of 30 minutes
    fifth = max(1, len(settled) // 5)
    growth = float((np.mean(settled[-fifth:]) / np.mean(settled[:fifth]) - 1) * 100)
    return [
        Finding("memory", "minutes of load", plan.minutes),
        Finding("memory", "resident memory at the end, MiB", resident[-1]),
        Finding("memory", "growth of resident memory after the first sixth, %", growth, "<= 2", growth <= 2),
    ]
