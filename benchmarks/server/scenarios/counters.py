"""Every kind of request and of disconnect, all at once; the client's own counts are compared with /metrics."""

import asyncio
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.client import RESET, ask_once, metrics, post
from benchmarks.harness.process import ServiceProcess
from benchmarks.server.scenarios.findings import Finding, LoadPlan, random_text

ROUNDS, BULK_TEXTS = 20, 200
EXIT_SECONDS, SETTLE_SECONDS, POLL_SECONDS = 60.0, 30.0, 0.1
KEY = {"authorization": "Bearer key"}
SETTINGS = {
    "BERT_API_KEY": "key",
    "BERT_MAX_BODY_BYTES": "200000",
    "BERT_MAX_WAITING_TOKENS": "20000",
}
CHUNKED = b"POST /embed HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key\r\ntransfer-encoding: chunked\r\n\r\n"
ENDS = ("answered", "refused", "failed", "cancelled", "expired")


@dataclass(slots=True)
class Sent:
    """What the clients know: the status of each response, and the requests to which they read none."""

    statuses: Counter[int] = field(default_factory=Counter)
    unread: int = 0  # complete or not, with a complete head

    @property
    def counted(self) -> int:
        return self.unread + self.statuses.total()


async def counters(artifact: Path, _: LoadPlan) -> list[Finding]:
    return [one for workers in (1, 2) for one in await _compare(artifact, workers)]


async def _compare(artifact: Path, workers: int) -> list[Finding]:
    settings = SETTINGS | {"BERT_MODEL": str(artifact), "BERT_WORKERS": str(workers)}
    name, sent = f"counters, {workers} workers", Sent()
    with ServiceProcess(settings) as process:
        kinds = _requests() * ROUNDS
        random.shuffle(kinds)
        asking = [asyncio.create_task(_ask(process.port, request, sent)) for request in kinds]
        asking += [asyncio.create_task(_leave(process.port, sent)) for _ in range(ROUNDS)]
        await asyncio.gather(*asking)
        found = _differences(f"{name}, under load", sent, await _when_counted(process.port, sent))
        bulk = [asyncio.create_task(_ask(process.port, _bulk(), sent)) for _ in range(8)]
        await asyncio.sleep(POLL_SECONDS)
        process.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*bulk)
        found += _differences(f"{name}, after SIGTERM", sent, await metrics(process.port))
        code = await asyncio.to_thread(process.process.wait, EXIT_SECONDS)
    return [*found, Finding(name, "exit code", float(code), "0", code == 0)]


def _bulk(**headers: str) -> bytes:
    return post("/embed", {"inputs": [random_text(30) for _ in range(BULK_TEXTS)]}, **KEY, **headers)


def _requests() -> list[bytes]:
    """One of each kind that gets a response: valid, invalid, too large, unknown, late, more than the queue takes."""
    valid = post("/embed", {"inputs": [random_text(5)]}, **KEY)
    pair = {"text": "a dog", "text_pair": "a river"}
    return [
        *(valid, post("/nsp", {"inputs": pair}, **KEY), post("/fill-mask", {"inputs": "the [MASK] is old"}, **KEY)),
        *(post("/v1/embeddings", {"input": "a dog"}, **KEY), post("/predict", {"inputs": "a dog"}, **KEY)),
        *(post("/embed", {}, **KEY), post("/embed", {"inputs": ""}, **KEY), valid.replace(b'{"', b'["')),
        *(post("/embed", {"inputs": "a dog"}), valid.replace(b"host: ", b"x-request-timeout-ms: soon\r\nhost: ")),
        post("/embed", {"inputs": "a" * 150_000}, **KEY),
        post("/embed", {"inputs": "a" * 250_000}, **KEY),
        CHUNKED + b"3e8\r\n%s\r\n" % (b" " * 1000) * 1 + b"0\r\n\r\n",
        *(post("/nothing", {}), b"GET /embed HTTP/1.1\r\nhost: x\r\n\r\n"),
        *(valid.replace(b"host: ", b"x-long: %s\r\nhost: " % (b"a" * 20_000)), b"GET  / /HTTP\r\n\r\n"),
        *(CHUNKED + b"not a number\r\n", valid[:-3]),  # malformed within its body; never complete
        *(_bulk(**{"x-request-timeout-ms": timeout}) for timeout in ("1", "50")),
        *(_bulk() for _ in range(3)),
    ]


async def _ask(port: int, request: bytes, sent: Sent) -> None:
    status = (await ask_once(port, request)).status
    if status == RESET:
        sent.unread += 1
    else:
        sent.statuses[status] += 1


async def _leave(port: int, sent: Sent) -> None:
    """Disconnects in the head (which is no request yet), in the body, and at three moments after a complete request."""
    request = _bulk()
    head = request.index(b"\r\n\r\n") + 4
    await _send_and_leave(port, request[: head - 3], 0)
    for size, seconds in (
        (head, 0.0),
        (head + 100, 0.1),
        (len(request), 0.0),
        (len(request), 0.1),
        (len(request), 0.5),
    ):
        await _send_and_leave(port, request[:size], seconds)
        sent.unread += 1


async def _send_and_leave(port: int, content: bytes, seconds: float) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    await writer.drain()
    await asyncio.sleep(seconds)
    writer.close()


async def _when_counted(port: int, sent: Sent) -> dict[str, float]:
    """/metrics when it has counted every request, or after SETTLE_SECONDS; one poll later, so that it shows more."""
    for _ in range(int(SETTLE_SECONDS / POLL_SECONDS)):
        if _total(await metrics(port), "bert_requests_total") >= sent.counted:
            break
        await asyncio.sleep(POLL_SECONDS)
    await asyncio.sleep(POLL_SECONDS)
    return await metrics(port)


def _total(values: dict[str, float], name: str, label: str = "") -> float:
    return sum(value for series, value in values.items() if series.startswith(name + "{") and label in series)


def _differences(name: str, sent: Sent, values: dict[str, float]) -> list[Finding]:
    """Counted by /metrics less counted here: of all requests, of each status, of errors; and of the queue's outcomes.

    A request without a response may have any outcome, but each of them has one.
    """
    statuses = {status: _total(values, "bert_requests_total", f'status="{status}"') for status in range(200, 600)}
    more = {status: count - sent.statuses[status] for status, count in statuses.items()}
    fewer = -sum(min(0.0, count) for count in more.values())
    total, ok = sum(statuses.values()), statuses[200]
    outcomes = "bert_queue_requests_total"
    ended = sum(values[f'{outcomes}{{outcome="{end}"}}'] for end in ENDS) + values["bert_inflight_requests"]
    checks = {
        "counted less sent": total - sent.counted,
        "responses that are counted under no or another status": fewer,
        "errors by reason less requests without 200": _total(values, "bert_errors_total") - (total - ok),
        "received less ended and in flight in the queue": values[f'{outcomes}{{outcome="received"}}'] - ended,
    }
    figures = {"requests with a response": float(sent.statuses.total()), "requests without": float(sent.unread)}
    return [
        *(Finding(name, what, figure) for what, figure in figures.items()),
        *(Finding(name, what, difference, "0", difference == 0) for what, difference in checks.items()),
    ]
