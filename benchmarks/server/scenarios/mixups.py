"""Concurrent answers beside the answers to the same texts computed alone: does each client get its own?"""

import asyncio
import io
import random
import time

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.client import Connection, post
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, random_text

LENGTHS = (1, 2, 3, 5, 8, 13, 20, 60)  # words of a text
TEXTS_IN_A_REQUEST = (1, 1, 2, 5, 20, 50)
CLIENTS = 24


async def mixups(target: Target, plan: LoadPlan) -> list[Finding]:
    """Compares `plan.answers` vectors bit for bit with a table computed one text at a time."""
    texts = list({random_text(random.choice(LENGTHS)) for _ in range(1000)})
    alone = [await _vectors(Connection(target.port), [one]) for one in texts]
    known, wrong, left = np.concatenate(alone), 0, plan.answers
    began = time.monotonic()

    async def client() -> None:
        nonlocal wrong, left
        connection = Connection(target.port)
        while left > 0:
            drawn = random.choices(range(len(texts)), k=random.choice(TEXTS_IN_A_REQUEST))
            left -= len(drawn)
            found = await _vectors(connection, [texts[i] for i in drawn])
            same_shape = found.shape == known[drawn].shape
            wrong += int((found != known[drawn]).any(axis=1).sum()) if same_shape else len(drawn)
        connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return [
        Finding("mixups", "answers compared, bit for bit", float(plan.answers)),
        Finding("mixups", "answers/s", plan.answers / (time.monotonic() - began)),
        Finding("mixups", "answers that differ from those computed alone", float(wrong), "0", wrong == 0),
    ]


async def _vectors(connection: Connection, texts: list[str]) -> NDArray[np.float32]:
    """[texts, hidden]"""
    outcome = await connection.ask(post("/embed", {"inputs": texts}, accept="application/x-npy"))
    assert outcome.status == 200, outcome
    found: NDArray[np.float32] = np.load(io.BytesIO(outcome.body))
    return found
