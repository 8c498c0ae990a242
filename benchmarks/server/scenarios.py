"""The scenarios of `benchmarks.server.overload`, a function each: sends its load to a server and returns findings."""

import asyncio
import io
import itertools
import multiprocessing
import random
import socket
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.client import ANSWER_SECONDS, RESET, Connection, Outcome, metrics, percentile, post
from benchmarks.harness.process import resident_mib
from benchmarks.harness.streams import closed_loop, open_loop

# words of the bundled model
WORDS = ["the", "river", "flows", "through", "city", "and", "it", "is", "long", "wide", "my", "dog", "was", "hairy"]
WORDS += ["old", "house", "near", "sea"]
BULK_SECONDS = 600.0  # at most; the bulk client is ended as soon as the single texts have been timed
# with 8 connections a slow moment brings the estimated wait to the limit, and a refused client asks again at once
KNEE_CONNECTIONS, KNEE_SECONDS = 4, 8.0
RECOVERY_SECONDS = 60.0  # at most
MIXUP_CLIENTS, LEAVING_CLIENTS, MEMORY_CLIENTS = 24, 300, 8
LEAVING_SECONDS = 4.0  # within which half of the clients disconnect
SAMPLE_SECONDS = 2.0  # between two looks at the resident memory
LENGTHS, TEXTS_IN_A_REQUEST = (1, 2, 3, 5, 8, 13, 20, 60), (1, 1, 2, 5, 20, 50)  # of mixups: words, texts
MEMORY_LENGTHS, MEMORY_TEXTS = (1, 3, 8, 20, 60, 150, 300), (1, 1, 1, 5, 20)
NPY = {"accept": "application/x-npy"}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How much load each scenario sends; a field is read by the scenario that its comment names."""

    seconds: float  # overload
    minutes: float  # memory
    answers: int  # mixups
    singles: int  # idle, fairness: single texts that are timed
    pause: float  # memory: seconds at most between two requests of a client


@dataclass(frozen=True, slots=True)
class Target:
    """A running server on 127.0.0.1."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One measured figure, and its bound if it has one."""

    scenario: str
    what: str
    measured: float
    bound: str = ""
    holds: bool | None = None  # None: no bound


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
    seconds, runs = (after[name] - before[name] for name in ("bert_forward_seconds_sum", "bert_forward_seconds_count"))
    batch = 1000 * seconds / runs
    bound = 2 * percentile(alone, 0.99) + batch
    found = percentile(beside, 0.99)
    return [
        Finding("fairness", "single texts alone, p99 ms", percentile(alone, 0.99)),
        Finding("fairness", "one batch beside the bulk client, ms", batch),
        Finding("fairness", "single texts beside a bulk client, p50 ms", percentile(beside, 0.5)),
        Finding("fairness", "single texts beside a bulk client, p99 ms", found, f"<= {bound:.3g}", found <= bound),
    ]


async def overload(target: Target, plan: LoadPlan) -> list[Finding]:
    """Requests of 32 texts of 60 words, so that the model is the limit and not the client."""
    requests = [post("/embed", {"inputs": [random_text(60) for _ in range(32)]}, **NPY) for _ in range(16)]
    peak = await closed_loop(target.port, itertools.cycle(requests), connections=KNEE_CONNECTIONS, seconds=KNEE_SECONDS)
    knee, refused_at_the_knee = peak.rate, peak.asked - len(peak.answered)
    normal = percentile(await time_single_texts(target.port, 50), 0.5)
    stream = await open_loop(target.port, requests, rate=10 * knee, seconds=plan.seconds)
    recovery = await _seconds_until_normal(target.port, 2 * normal + 2)
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


async def mixups(target: Target, plan: LoadPlan) -> list[Finding]:
    """Compares `plan.answers` concurrent vectors bit for bit with a table computed one text at a time."""
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

    await asyncio.gather(*(client() for _ in range(MIXUP_CLIENTS)))
    return [
        Finding("mixups", "answers compared, bit for bit", float(plan.answers)),
        Finding("mixups", "answers/s", plan.answers / (time.monotonic() - began)),
        Finding("mixups", "answers that differ from those computed alone", float(wrong), "0", wrong == 0),
    ]


async def disconnects(target: Target, _: LoadPlan) -> list[Finding]:
    """300 concurrent clients, each with 40 texts of 60 words; half disconnect within the time that the others need."""
    before = await metrics(target.port)
    request = post("/embed", {"inputs": [random_text(60)] * 40}, **NPY)

    async def client(leaves: bool) -> int:
        connection = Connection(target.port)
        try:
            async with asyncio.timeout(random.uniform(0.0, LEAVING_SECONDS) if leaves else ANSWER_SECONDS):
                status = (await connection.ask(request)).status
        except TimeoutError:
            status = RESET
        connection.close()
        return status

    statuses = Counter(await asyncio.gather(*(client(n % 2 == 0) for n in range(LEAVING_CLIENTS))))
    after = await metrics(target.port)
    per_request = (after["bert_tokens_total"] - before["bert_tokens_total"]) / max(1, statuses[200])
    queued, in_flight = after["bert_waiting_tokens"], after["bert_inflight_requests"]
    outcomes = {
        name.split('"')[1]: value for name, value in after.items() if name.startswith("bert_queue_requests_total")
    }
    lost = outcomes.pop("received") - sum(outcomes.values()) - in_flight
    return [
        Finding("disconnects", "clients answered", float(statuses[200])),
        Finding("disconnects", "clients disconnected", float(statuses[RESET])),
        Finding("disconnects", "requests refused", float(statuses[429])),
        Finding("disconnects", "tokens run for each answer", per_request),
        Finding("disconnects", "tokens still queued", queued, "0", queued == 0),
        Finding("disconnects", "requests still in flight", in_flight, "0", in_flight == 0),
        Finding("disconnects", "requests received minus requests finished", lost, "0", lost == 0),
    ]


async def memory(target: Target, plan: LoadPlan) -> list[Finding]:
    """Samples the server's resident memory every 2 s while 8 clients send requests of mixed lengths."""
    end, resident = time.monotonic() + 60 * plan.minutes, []

    async def client() -> None:
        connection = Connection(target.port)
        while time.monotonic() < end:
            texts = [random_text(random.choice(MEMORY_LENGTHS)) for _ in range(random.choice(MEMORY_TEXTS))]
            await connection.ask(post("/embed", {"inputs": texts}))
            await asyncio.sleep(random.uniform(0, plan.pause))
        connection.close()

    clients = [asyncio.create_task(client()) for _ in range(MEMORY_CLIENTS)]
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


def random_text(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


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
    requests = [post("/embed", {"inputs": [random_text(20) for _ in range(2000)]}, **NPY) for _ in range(4)]
    asyncio.run(closed_loop(port, itertools.cycle(requests), connections=1, seconds=BULK_SECONDS))


async def _seconds_until_normal(port: int, milliseconds: float) -> float:
    """Until five single texts in a row take at most `milliseconds`."""
    began, good, connection = time.monotonic(), 0, Connection(port)
    while good < 5 and time.monotonic() - began < RECOVERY_SECONDS:
        outcome = await connection.ask(post("/embed", {"inputs": random_text(6)}))
        good = good + 1 if outcome.status == 200 and outcome.seconds * 1000 <= milliseconds else 0
    connection.close()
    return time.monotonic() - began


async def _vectors(connection: Connection, texts: list[str]) -> NDArray[np.float32]:
    """[texts, hidden]"""
    outcome = await connection.ask(post("/embed", {"inputs": texts}, **NPY))
    assert outcome.status == 200, outcome
    found: NDArray[np.float32] = np.load(io.BytesIO(outcome.body))
    return found
