"""Sends POSTs on task paths straight to their endpoints, past FastAPI; the other routes get HEAD and x-request-id.
`PortSplit` stands before two such applications where the service has two ports."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.request import request_id
from service.metrics import MISDIRECTED, UNKNOWN, Metrics

OTHER = "other"  # the path of a response that no FastAPI route gave, such as that of /openapi.json


class TaskFastPath:
    """ASGI application in front of `fallback`, the FastAPI application, which declares the same endpoints.

    Through FastAPI's middlewares, router and wrappers a request takes 104 Python calls instead of 32, and 25 us more
    (null backend, no socket); they do nothing for an endpoint that reads its own bytes.
    """

    def __init__(self, fallback: ASGIApp, endpoints: Mapping[str, ASGIApp], metrics: Metrics) -> None:
        self.fallback, self.metrics = fallback, metrics
        self._endpoints = endpoints

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self.fallback(scope, receive, send)
        endpoint = self._endpoints.get(scope["path"]) if scope["method"] == "POST" else None
        return (endpoint or self._call_fallback)(scope, receive, send)

    async def _call_fallback(self, scope: Scope, receive: Receive, send: Send) -> None:
        own_id = request_id(dict(scope["headers"]))
        scope["state"] = {**scope.get("state", {}), "request_id": own_id.decode()}

        head = scope["method"] == "HEAD"
        if head:  # the response to HEAD is that to GET without its body
            scope = {**scope, "method": "GET"}

        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", own_id)]
            elif head:
                message = {**message, "body": b""}
            await send(message)

        try:
            await self.fallback(scope, receive, send_with_id)
        finally:
            if status:
                self._count(scope, status)

    def _count(self, scope: Scope, status: int) -> None:
        """404 and 405 are misdirected requests of tasks; the other responses are those of probes and pages."""
        if status in MISDIRECTED:
            self.metrics.refused(UNKNOWN, status, MISDIRECTED[status])
        else:
            self.metrics.operational(getattr(scope.get("route"), "path", OTHER), status)


@dataclass(frozen=True, slots=True)
class PortSplit:
    """ASGI application of two ports: `admin` on `admin_port`, `public` on any other.

    The port is that of the socket which accepted the connection, so no header of a request chooses it. `admin` also
    gets the events of the process's start and end.
    """

    admin_port: int
    admin: ASGIApp
    public: ASGIApp

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_public = scope["type"] == "http" and scope["server"][1] != self.admin_port
        return (self.public if is_public else self.admin)(scope, receive, send)
