"""A model that admits every request and answers none, an application called as the server calls it, and its turns."""

import asyncio
import gc
import os
import selectors
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from packbert.service.errors import ServiceError
from packbert.service.http.app import TASKS
from packbert.service.http.server import COLLECT_AFTER
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from tests.service.fakes import OnlyModel

MANIFEST = SimpleNamespace(
    device="cpu",  # what the dialects read when the application is made
    name="sample",
    heads=("cls", *(spec.head for spec in TASKS.values())),
    labels=(),
    max_tokens=512,
    outputs={"cls": SimpleNamespace(shape=("n", 32))},
    embedding=SimpleNamespace(pooling="cls", normalize=False, kept_dimensions=0),
)


class FakeModel(OnlyModel):
    """Refuses requests with `error`, if there is one, and else always fails with an unexpected error."""

    def __init__(self, *, error: ServiceError | None = None, **settings: Any) -> None:
        self.settings = Settings.model_validate({"model": "."} | settings)
        self.metrics = Metrics()
        self.error, self.refuses = error, error is not None
        self.artifact, self.manifest = SimpleNamespace(manifest=MANIFEST), MANIFEST
        self.current, self.tasks, self.users = self, self, nullcontext()

    def refuse(self) -> None:
        if self.error is not None:
            raise self.error


class Meter(selectors.DefaultSelector):
    """The selector of an event loop, which measures the turns between its calls."""

    longest = 0.0  # seconds of the processor
    largest = 0  # bytes in memory
    _began = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.end_turn()
        self.largest = max(self.largest, resident_bytes())
        try:
            return super().select(timeout)
        finally:
            self._began = time.thread_time()

    def start(self) -> None:
        self.longest, self.largest, self._began = 0.0, resident_bytes(), time.thread_time()

    def end_turn(self) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@contextmanager
def measured() -> Iterator[tuple[asyncio.Runner, Meter]]:
    """The runner of a loop that is measured, while garbage is collected as in a service that has started."""
    meter, thresholds = Meter(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(meter)) as runner:
            yield runner, meter
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


async def call(
    app: Any, method: str, path: str, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()
) -> tuple[int, bytes]:
    """The status and the body of the response."""
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [*headers], "state": {}}
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]
