"""What a loaded server promises: the longest wait of those it admits, and the time after which to come back."""

import asyncio
import itertools
import re
import time
from collections import Counter

from benchmarks.harness.client import ANSWER_SECONDS, Connection, Outcome, percentile, post
from benchmarks.harness.streams import closed_loop, open_loop
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, random_text
from benchmarks.server.scenarios.saturation import KNEE_CONNECTIONS, KNEE_SECONDS

MAX_WAIT_SECONDS = 10  # BERT_MAX_WAIT_SECONDS of waits
RETURNS_MAX_WAIT_SECONDS = 2  # of returns
LOADS = (2, 5, 10)  # times the knee
AT_ONCE = 600  # requests refused at once, about
RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d+)")


async def waits(target: Target, plan: LoadPlan) -> list[Finding]:
    """Requests of 32 texts of 60 words, in an open loop at 2, 5 and 10 times the knee, one after another."""
    requests = [
        post("/embed", {"inputs": [random_text(60) for _ in range(32)]}, accept="application/x-npy") for _ in range(16)
    ]
    peak = await closed_loop(target.port, itertools.cycle(requests), connections=KNEE_CONNECTIONS, seconds=KNEE_SECONDS)
    findings = [Finding("waits", "requests/s at the knee", peak.rate)]
    limit = 1.2 * MAX_WAIT_SECONDS * 1000
    for load in LOADS:
        stream = await open_loop(target.port, requests, rate=load * peak.rate, seconds=plan.seconds)
        found, refused = percentile(stream.answered, 0.99), stream.waits[429]
        findings += [
            Finding("waits", f"{load}x: requests sent", float(stream.asked)),
            Finding("waits", f"{load}x: goodput / knee", stream.rate / peak.rate),
            Finding("waits", f"{load}x: answered requests, p50 ms", percentile(stream.answered, 0.5)),
            Finding("waits", f"{load}x: answered requests, p99 ms", found, f"<= {limit:g}", found <= limit),
            Finding("waits", f"{load}x: refused requests, p50 ms", percentile(refused, 0.5)),
            Finding("waits", f"{load}x: refused requests, p99 ms", percentile(refused, 0.99)),
        ]
    return findings


async def returns(target: Target, _: LoadPlan) -> list[Finding]:
    """Requests of 8 texts of 60 words, all at once; each that is refused comes back once, when it is asked to."""
    request = post("/embed", {"inputs": [random_text(60) for _ in range(8)]}, accept="application/x-npy")
    rate = (await closed_loop(target.port, itertools.repeat(request), connections=4, seconds=4.0)).rate
    count = AT_ONCE + round(RETURNS_MAX_WAIT_SECONDS * rate)
    began = time.monotonic()
    async with asyncio.timeout(3 * ANSWER_SECONDS):
        clients = await asyncio.gather(*(_come_back(target.port, request) for _ in range(count)))
    seconds = time.monotonic() - began
    refused = [(retry, again) for first, retry, again in clients if first == 429]
    admitted = sum(again == 200 for _, again in refused) / max(1, len(refused))
    statuses = Counter(status for first, _, again in clients for status in (first, again))
    other = statuses.total() - statuses[200] - statuses[429]
    return [
        Finding("returns", "requests/s at the knee", rate),
        Finding("returns", "requests sent at once", float(count)),
        Finding("returns", "of those, refused", float(len(refused))),
        Finding("returns", "share admitted at the first return", admitted, ">= 0.5", admitted >= 0.5),
        Finding("returns", "longest Retry-After, s", float(max((retry for retry, _ in refused), default=0))),
        Finding("returns", "seconds until the last answer", seconds),
        Finding("returns", "seconds of work at the knee's rate", count / rate),
        Finding("returns", "answers with neither 200 nor 429", float(other), "0", other == 0),
    ]


async def _come_back(port: int, request: bytes) -> tuple[int, int, int]:
    """The status, the seconds of Retry-After, and the status at the first return; 0, 200 where it was not refused."""
    connection = Connection(port)
    try:
        first = await connection.ask(request)
        if first.status != 429:
            return first.status, 0, 200
        connection.close()  # an idle one is closed by the server
        await asyncio.sleep(retry := _retry_seconds(first))
        return first.status, retry, (await connection.ask(request)).status
    finally:
        connection.close()


def _retry_seconds(outcome: Outcome) -> int:
    found = RETRY_AFTER.search(outcome.head)
    assert found is not None, outcome
    return int(found[1])
