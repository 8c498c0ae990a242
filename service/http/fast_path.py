"""What stands before everything else, as plain ASGI: every answer carries its request's id, and a task is reached without a detour."""

from collections.abc import Mapping

from service.http.request import App, Message, Receive, Scope, Send, TaskRequest


class TaskFastPath:
    """POSTs to a task's path go straight to its route; whatever else is asked goes through `pages`, the FastAPI application.

    The same routes are in `pages` too. Its middlewares, its router and what wraps an endpoint take 100 us of a request there, more than
    tokenizing and the whole line (benchmarks/README.md), and do nothing for a route that reads its own bytes.
    """

    def __init__(self, pages: App, tasks: Mapping[str, App]) -> None:
        self._pages = pages
        self._tasks = tasks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        task = self._tasks.get(scope["path"])
        if task is not None and scope["method"] == "POST":
            await task(scope, receive, send)
            return
        own = TaskRequest.of(scope, receive, send).id
        scope["state"] = {**scope.get("state", {}), "request_id": own.decode()}

        async def named_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", own)]
            await send(message)

        await self._pages(scope, receive, named_send)
