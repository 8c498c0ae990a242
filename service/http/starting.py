"""What a server answers until its models are loaded: probes and the page; 503 to all else."""

import logging
from pathlib import Path
from typing import Any, NoReturn

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import LOADING, SHUTTING_DOWN, Unavailable
from ..model_cache import Source
from ..observability.metrics import Metrics
from ..observability.scrape import StateCollector, render
from ..prepare import prepare_model
from ..settings import Settings
from .app import TASKS, add_error_handlers, add_operational_routes, serve_ports
from .dialects import kserve, root
from .endpoint import TaskEndpoint
from .headers import ApiKeys

RETRY_SECONDS = 10.0  # while a model is exported
log = logging.getLogger("service")


class Starting(logging.Handler):
    """Stands in for a model, its engine and its service; admits no request. As a handler it reads an export's log."""

    draining, degraded, tracing = False, "", None
    line = ""  # the last of the log, while a model is prepared

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        super().__init__()
        self.settings, self.metrics = settings, metrics
        self.models = self.current = self.artifact = self

    def emit(self, record: logging.LogRecord) -> None:
        self.line = record.getMessage()

    def prepare(self, settings: Settings, source: Source, device: str) -> Path:
        """Prepares the model as `prepare_model` does, and shows the log of it in the answers meanwhile."""
        self.line = "the model is being prepared"
        log.addHandler(self)
        try:
            return prepare_model(settings, source, device)
        finally:
            log.removeHandler(self)
            self.line = ""

    def admit(self, _: int) -> NoReturn:
        """Raises Unavailable."""
        if self.draining:
            raise Unavailable(SHUTTING_DOWN)
        if line := self.line:
            raise Unavailable(f"the model is not there yet: {line}", code="exporting", retry_after=RETRY_SECONDS)
        raise Unavailable(LOADING, code="loading", retry_after=2)

    async def ready(self) -> str:
        if self.draining:
            return "draining"
        return f"exporting: {self.line}" if self.line else "loading"

    async def readiness(self) -> dict[str, str]:
        return {}

    def info(self) -> NoReturn:
        """Raises Unavailable."""
        self.admit(0)

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        return render([StateCollector([], self.metrics.processes, {}), self.metrics.collector()], accept)

    def make_app(self, keys: ApiKeys) -> ASGIApp:
        app = FastAPI(openapi_url=None, redirect_slashes=False)
        stand_in: Any = self  # these routes need no more of a model
        add_operational_routes(app, stand_in)
        kserve.add_server_routes(app.router, stand_in)
        root.add_get_routes(app.router, stand_in)
        app.router.default = self._refuse  # in place of a 404
        add_error_handlers(app)
        endpoints = {path: TaskEndpoint(stand_in, spec, keys) for path, spec in TASKS.items()}
        return serve_ports({"": app}, endpoints, self.settings.admin_port, self.metrics)

    async def _refuse(self, _: Scope, __: Receive, ___: Send) -> None:
        self.admit(0)
