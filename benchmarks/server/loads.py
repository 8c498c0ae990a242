"""The loads of `benchmarks.server.overload` that share a running server."""

import asyncio
import io
import itertools
import multiprocessing
import random
import re
import socket
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.client import RESET, Connection, Outcome, metrics, percentile, post
from benchmarks.harness.streams import closed_loop, open_loop

WORDS = [
    "the",
    "river",
    "flows",
    "through",
    "city",
    "and",
    "it",
    "is",
    "long",
    "wide",
    "my",
    "dog",
    "was",
    "hairy",
    "old",
    "house",
    "near",
    "sea",
]
BULK_SECONDS = 600.0  # at most; it is ended when the singles have been timed
KNEE_CONNECTIONS, KNEE_SECONDS = (
    4,
    8.0,
)  # with 8 a slow moment brings the estimated wait to the limit, and who is refused asks again at once
SETTINGS = {"overload": {"BERT_MAX_WAIT_SECONDS": "1"}}  # the setting is the promise: all is normal again after so long


@dataclass(frozen=True, slots=True)
class LoadPlan:
    seconds: float
    minutes: float
    times: int
    answers: int
    singles: int
    pause: float


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Finding:
    scenario: str
    what: str
    measured: float
    bound: str = ""
    holds: bool | None = None


def text(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


async def idle(target: Target, plan: LoadPlan) -> list[Finding]:
    """On a blocking socket, so that the client's own share is small."""
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
    alone = await _singles(target.port, plan.singles)
    bulk = multiprocessing.get_context("spawn").Process(target=_bulk_client, args=(target.port,), daemon=True)
    bulk.start()
    await asyncio.sleep(2)
    before = await metrics(target.port)
    beside = await _singles(target.port, plan.singles)
    after = await metrics(target.port)
    bulk.terminate()
    bulk.join()
    batch = (
        1000 * _grown(before, after, "bert_forward_seconds_sum") / _grown(before, after, "bert_forward_seconds_count")
    )
    bound = 2 * percentile(alone, 0.99) + batch
    found = percentile(beside, 0.99)
    return [
        Finding("fairness", "single texts alone, p99 ms", percentile(alone, 0.99)),
        Finding("fairness", "one batch beside the bulk client, ms", batch),
        Finding("fairness", "single texts beside a bulk client, p50 ms", percentile(beside, 0.5)),
        Finding("fairness", "single texts beside a bulk client, p99 ms", found, f"<= {bound:.3g}", found <= bound),
    ]


async def _singles(port: int, count: int) -> list[float]:
    connection, seconds = Connection(port), []
    for _ in range(count):
        outcome = await connection.ask(post("/embed", {"inputs": text(6)}))
        assert outcome.status == 200, outcome
        seconds.append(outcome.seconds)
        await asyncio.sleep(random.uniform(0, 0.04))
    connection.close()
    return seconds


def _bulk_client(port: int) -> None:
    """In a process of its own: reading 2 MB of answer would hold up the singles' clock."""
    requests = [
        post("/embed", {"inputs": [text(20) for _ in range(2000)]}, accept="application/x-npy") for _ in range(4)
    ]
    asyncio.run(closed_loop(port, itertools.cycle(requests), connections=1, seconds=BULK_SECONDS))


async def overload(target: Target, plan: LoadPlan) -> list[Finding]:
    """Requests of 32 texts of 60 words, so that the model is the limit and not the client."""
    requests = [
        post("/embed", {"inputs": [text(60) for _ in range(32)]}, accept="application/x-npy") for _ in range(16)
    ]
    peak = await closed_loop(target.port, itertools.cycle(requests), connections=KNEE_CONNECTIONS, seconds=KNEE_SECONDS)
    knee, refused_at_the_knee = peak.rate, peak.asked - len(peak.answered)
    normal = percentile(await _singles(target.port, 50), 0.5)
    stream = await open_loop(target.port, requests, rate=10 * knee, seconds=plan.seconds)
    recovery = await _until_normal(target.port, 2 * normal + 2)
    goodput, refused = stream.rate / knee, stream.waits[429]
    refusal = percentile(refused, 0.99)
    unanswered = stream.asked - len(stream.answered) - len(refused)
    return [
        Finding("overload", "requests/s at the knee", knee),
        Finding("overload", "requests refused at the knee", float(refused_at_the_knee), "0", refused_at_the_knee == 0),
        Finding("overload", "requests sent", float(stream.asked)),
        Finding("overload", "answers with neither 200 nor 429", float(unanswered), "0", unanswered == 0),
        Finding("overload", "goodput / knee", goodput, ">= 0.9", goodput >= 0.9),
        Finding("overload", "answered requests, p99 ms", percentile(stream.answered, 0.99)),
        Finding("overload", "refused requests, p50 ms", percentile(refused, 0.5)),
        Finding("overload", "refused requests, p99 ms", refusal, "<= 5", refusal <= 5),
        Finding("overload", "seconds until single texts are as fast as before", recovery, "<= 2", recovery <= 2),
    ]


async def _until_normal(port: int, milliseconds: float) -> float:
    """Seconds until five singles in a row are as fast as that."""
    began, good, connection = time.monotonic(), 0, Connection(port)
    while good < 5 and time.monotonic() - began < 60:
        outcome = await connection.ask(post("/embed", {"inputs": text(6)}))
        good = good + 1 if outcome.status == 200 and outcome.seconds * 1000 <= milliseconds else 0
    connection.close()
    return time.monotonic() - began


async def mixups(target: Target, plan: LoadPlan) -> list[Finding]:
    texts = list({text(random.choice((1, 2, 3, 5, 8, 13, 20, 60))) for _ in range(1000)})
    alone = [await _vectors(Connection(target.port), [one]) for one in texts]
    known, wrong, left = np.concatenate(alone), 0, plan.answers
    began = time.monotonic()

    async def client() -> None:
        nonlocal wrong, left
        connection = Connection(target.port)
        while left > 0:
            chosen = random.choices(range(len(texts)), k=random.choice((1, 1, 2, 5, 20, 50)))
            left -= len(chosen)
            found = await _vectors(connection, [texts[i] for i in chosen])
            wrong += (
                int((found != known[chosen]).any(axis=1).sum()) if found.shape == known[chosen].shape else len(chosen)
            )
        connection.close()

    await asyncio.gather(*(client() for _ in range(24)))
    return [
        Finding("mixups", "answers compared, bit for bit", float(plan.answers)),
        Finding("mixups", "answers/s", plan.answers / (time.monotonic() - began)),
        Finding("mixups", "answers that differ from those computed alone", float(wrong), "0", wrong == 0),
    ]


async def _vectors(connection: Connection, texts: list[str]) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    outcome = await connection.ask(post("/embed", {"inputs": texts}, accept="application/x-npy"))
    assert outcome.status == 200, outcome
    found: np.ndarray[tuple[int, int], np.dtype[np.float32]] = np.load(io.BytesIO(outcome.body))
    return found


async def leaving(target: Target, _: LoadPlan) -> list[Finding]:
    """300 clients at once, each with 40 texts of 60 words; half of them leave within the time that the others need."""
    before, tokens = await metrics(target.port), {True: 0, False: 0}
    request = post("/embed", {"inputs": [text(60)] * 40}, accept="application/x-npy")

    async def client(leaves: bool) -> int:
        connection = Connection(target.port)
        try:
            async with asyncio.timeout(random.uniform(0.0, 4.0) if leaves else 120):
                status = (await connection.ask(request)).status
        except TimeoutError:
            status = RESET
        connection.close()
        tokens[status == 200] += 1
        return status

    statuses = Counter(await asyncio.gather(*(client(n % 2 == 0) for n in range(300))))
    after = await metrics(target.port)
    per_request = _grown(before, after, "bert_tokens_total") / max(1, statuses[200])
    waiting, unanswered = after["bert_waiting_tokens"], after["bert_inflight_requests"]
    return [
        Finding("disconnects", "clients answered", float(statuses[200])),
        Finding("disconnects", "clients disconnected", float(statuses[RESET])),
        Finding("disconnects", "requests refused", float(statuses[429])),
        Finding("disconnects", "tokens run for each answer", per_request),
        Finding("disconnects", "tokens still queued", waiting, "0", waiting == 0),
        Finding("disconnects", "requests still in flight", unanswered, "0", unanswered == 0),
        Finding("disconnects", "requests received minus requests finished", _balance(after), "0", _balance(after) == 0),
    ]


async def memory(target: Target, plan: LoadPlan) -> list[Finding]:
    """Resident memory of the server, every 2 s, while 8 clients send mixed lengths."""
    end, resident = time.monotonic() + 60 * plan.minutes, []

    async def client() -> None:
        connection = Connection(target.port)
        while time.monotonic() < end:
            texts = [text(random.choice((1, 3, 8, 20, 60, 150, 300))) for _ in range(random.choice((1, 1, 1, 5, 20)))]
            await connection.ask(post("/embed", {"inputs": texts}))
            await asyncio.sleep(random.uniform(0, plan.pause))
        connection.close()

    clients = [asyncio.create_task(client()) for _ in range(8)]
    while time.monotonic() < end:
        resident.append(_resident_mib(target.pid))
        await asyncio.sleep(2)
    await asyncio.gather(*clients)
    settled = resident[len(resident) // 6 :]  # 5 of 30 minutes
    growth = (np.mean(settled[-len(settled) // 5 :]) / np.mean(settled[: max(1, len(settled) // 5)]) - 1) * 100
    return [
        Finding("memory", "minutes of load", plan.minutes),
        Finding("memory", "resident memory at the end, MiB", resident[-1]),
        Finding(
            "memory", "growth of resident memory after the first sixth, %", float(growth), "<= 2", bool(growth <= 2)
        ),
    ]


def _resident_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def _grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before[name]


def _balance(values: dict[str, float]) -> float:
    counts = {
        name.split('"')[1]: value for name, value in values.items() if name.startswith("bert_queue_requests_total")
    }
    return counts.pop("received") - sum(counts.values()) - values["bert_inflight_requests"]
