"""A supervisor with its workers as processes, and the requests that are sent to them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, local
from typing import Any

import httpx

from benchmarks.harness.process import ServiceProcess
from tests.service.polling import repeated, sum_of, until

WORKERS = 2
PAUSE_SECONDS = 0.01  # of a client between two requests: without it, most of the load is that of the clients
BULK = ["the cat sat on the mat " * 20] * 100  # 12,000 tokens


SUMS = {  # of a request for the vector of "the cat": what it adds to each series
    "bert_request_seconds_count": 1,
    'bert_stage_seconds_count{stage="forward"}': 1,
    "bert_request_texts_sum": 1,
    "bert_request_tokens_sum": 4,
    "bert_request_bytes_sum": len('{"inputs":"the cat"}'),
}


class Service(ServiceProcess):
    """A supervisor and its workers."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._of_thread = local()

    @property
    def client(self) -> httpx.Client:
        """One for each thread: two threads may get one connection of a client without keep-alive, and one closes it."""
        if not hasattr(self._of_thread, "client"):
            self._of_thread.client = httpx.Client(
                base_url=self.url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0)
            )
        found: httpx.Client = self._of_thread.client
        return found

    @property
    def children(self) -> dict[str, int]:
        """Name -> process id of each running worker."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {spec["name"]: int(pid) for pid in pids if "name" in (spec := spec_of(int(pid)))}

    def count(self, series: str) -> float:
        """The sum of the series whose names begin so, read over a new connection."""
        return sum_of(self.get("/metrics").text, series)

    def get(self, path: str) -> httpx.Response:
        """Over a new connection, so that any of the workers may answer."""
        return self.client.get(path)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """As `get`."""
        return self.client.post(path, json=body, headers=headers)


def spec_of(pid: int) -> dict[str, Any]:
    """The WorkerSpec of a worker; something else for another process, empty after its end."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return {}
    found: dict[str, Any] = next((json.loads(word) for word in words if word.startswith("{")), {})
    return found


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@contextmanager
def load(service: Service, clients: int = 6) -> Iterator[tuple[Counter[int | str], list[httpx.Response]]]:
    """Clients that send single texts, each over a new connection; counts of the outcomes, and all responses but 200."""
    ends, others = Counter[int | str](), list[httpx.Response]()

    def call() -> None:
        try:
            answer = service.post("/embed", {"inputs": "the cat"})
        except httpx.TransportError as error:
            ends[type(error).__name__] += 1
            return
        ends[answer.status_code] += 1
        if answer.status_code != 200:
            others.append(answer)
        Event().wait(PAUSE_SECONDS)

    with repeated(call, clients):
        until(lambda: ends[200] >= 2 * clients)
        yield ends, others
