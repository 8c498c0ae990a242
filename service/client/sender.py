"""Sends requests in order, as many at a time as the server takes, and sends those again that it refused for the moment.

The number of requests at a time follows TCP's additive increase and multiplicative decrease (Chiu and Jain 1989): each
answer adds a little, each refusal halves it.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import httpx

from service.bulk.chunks import Input
from service.bulk.tasks import Answers, RequestFailed, in_order

FIRST_REQUESTS = 2  # at a time, before the server has answered
RETRIED_STATUSES = {429, 502, 503, 504}
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 15.0  # where the server names no Retry-After
MAX_NAMED_SECONDS = 300.0


class Concurrency:
    """How many requests are under way, and how many may be. Shared by the threads of a sender."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.allowed = float(min(FIRST_REQUESTS, most))
        self._most, self._clock = most, clock
        self._running = 0
        self._paused_until = 0.0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            while (wait := self._paused_until - self._clock()) > 0 or self._running >= int(self.allowed):
                self._changed.wait(wait if wait > 0 else None)
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def on_answer(self) -> None:
        with self._changed:
            self.allowed = min(self._most, self.allowed + 1 / self.allowed)
            self._changed.notify_all()

    def on_refusal(self, seconds: float) -> None:
        """No request starts for `seconds`; refusals during that time count once."""
        with self._changed:
            now = self._clock()
            if now >= self._paused_until:
                self.allowed = max(1.0, self.allowed / 2)
            self._paused_until = max(self._paused_until, now + seconds)
            self._changed.notify_all()


class Sender:
    """Sends bodies to one server. Does not know what they hold."""

    def __init__(self, http: httpx.Client, *, max_requests: int, patience_seconds: float) -> None:
        self._http, self._patience, self._max_requests = http, patience_seconds, max_requests
        self.concurrency = Concurrency(max_requests)

    def run_in_order(
        self, chunks: Iterable[list[Input]], answer: Callable[[list[Input]], Answers]
    ) -> Iterator[tuple[Answers, list[Input]]]:
        """`answer` of each chunk, on threads; at most twice `max_requests` chunks are taken ahead."""
        most = 2 * self._max_requests - 1  # and the one that was read
        with ThreadPoolExecutor(self._max_requests, "bert-client") as pool:
            yield from in_order(chunks, lambda chunk: pool.submit(answer, chunk), size=lambda _: 1, most=lambda: most)

    def send(self, path: str, body: dict[str, Any] | None, *, accept: str) -> httpx.Response | RequestFailed:
        """GET if `body` is None. Returns the failure instead of raising it, so that an iteration can go on."""
        method = "GET" if body is None else "POST"
        ends = time.monotonic() + self._patience
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                with self.concurrency if body is not None else nullcontext():  # GET runs no model
                    response = self._http.request(method, path, json=body, headers={"accept": accept})
            except httpx.TransportError as error:
                seconds, problem = pause, RequestFailed(f"{self._http.base_url}{path}: {error or type(error).__name__}")
            else:
                if response.status_code not in RETRIED_STATUSES:
                    self.concurrency.on_answer()
                    return response if response.is_success else read_failure(response)
                seconds, problem = named_seconds(response, pause), read_failure(response)
            if time.monotonic() + seconds > ends:
                return problem
            self.concurrency.on_refusal(seconds)
            pause = min(MAX_PAUSE_SECONDS, 2 * pause)


def named_seconds(response: httpx.Response, default: float) -> float:
    """The seconds of Retry-After, or `default` with a random part, so that clients do not all return at once."""
    named = response.headers.get("retry-after", "")
    if named.isascii() and named.isdigit():
        return min(MAX_NAMED_SECONDS, float(named))
    return default * random.uniform(0.5, 1.0)


def read_failure(response: httpx.Response) -> RequestFailed:
    """The service's error of a response, or its first characters if another server sent it."""
    try:
        content = response.json()
        message, code, index = content["error"], content.get("code"), content.get("index")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code, index = f"HTTP {response.status_code}: {response.text[:200]}", None, None
    index = index if isinstance(index, int) else None
    return RequestFailed(str(message), status=response.status_code, code=code, index=index)
