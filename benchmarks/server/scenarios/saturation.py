"""Ten times the load that the server can answer, in an open loop."""

import itertools
import time

from benchmarks.harness.client import Connection, percentile, post
from benchmarks.harness.streams import closed_loop, open_loop
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, random_text
from benchmarks.server.scenarios.latency import time_single_texts

# with 8 connections a slow moment brings the estimated wait to the limit, and a refused client asks again at once
KNEE_CONNECTIONS, KNEE_SECONDS = 4, 8.0
RECOVERY_SECONDS = 60.0  # at most


async def overload(target: Target, plan: LoadPlan) -> list[Finding]:
    """Requests of 32 texts of 60 words, so that the model is the limit and not the client."""
    requests = [
        post("/embed", {"inputs": [random_text(60) for _ in range(32)]}, accept="application/x-npy") for _ in range(16)
    ]
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


async def _seconds_until_normal(port: int, milliseconds: float) -> float:
    """Until five single texts in a row take at most `milliseconds`."""
    began, good, connection = time.monotonic(), 0, Connection(port)
    while good < 5 and time.monotonic() - began < RECOVERY_SECONDS:
        outcome = await connection.ask(post("/embed", {"inputs": random_text(6)}))
        good = good + 1 if outcome.status == 200 and outcome.seconds * 1000 <= milliseconds else 0
    connection.close()
    return time.monotonic() - began
