"""What the HTTP side needs of whatever answers behind it: an engine in this process, or one in another."""

from typing import Any, Protocol

from service.metrics import Metrics
from service.settings import Settings
from service.tasks.base import Tasks

BYTES_PER_TOKEN = 4  # of English in JSON, a little low; only a line that is nearly full refuses by this guess
SHUTTING_DOWN = "the server is shutting down: send the request to another replica"


class Backend(Protocol):
    settings: Settings
    metrics: Metrics
    startup_grace_seconds: float  # how long nobody is let in while it opens

    on_fatal: Any  # Callable[[], None]: ends the process, with an exit code that says so

    @property
    def draining(self) -> bool: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def admit(self, body_bytes: int) -> Tasks:
        """Raises Unavailable or Overloaded where a request with such a body would be refused: before it is read and tokenized."""

    def drain(self) -> None:
        """No longer ready, and newcomers are refused; what waits is still answered."""

    def cancel_pending(self) -> None:
        """Answers whatever still waits with 503."""

    async def ready(self) -> str:
        """Why a request would not be answered now; empty when it would."""

    async def info(self) -> dict[str, Any]: ...

    async def render_metrics(self) -> bytes: ...
