"""The door as plain ASGI: every answer carries its request's id, and a task's POSTs do not go through the pages."""

import asyncio
from typing import Any

import pytest

from service.http.fast_path import TaskFastPath


class Visit:
    """One request through the door; both sides of it answer 204."""

    def __init__(self, path: str = "/health", method: str = "GET", **headers: bytes) -> None:
        self.scope: dict[str, Any] = {"type": "http", "path": path, "method": method}
        self.scope["headers"] = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        self.seen = ""
        self.sent: list[Any] = []
        asyncio.run(TaskFastPath(self.pages, {"/embed": self.task})(self.scope, self.receive, self.send))

    async def pages(self, scope: Any, _: Any, send: Any) -> None:
        self.seen = scope["state"]["request_id"]
        await send({"type": "http.response.start", "status": 204, "headers": [(b"x", b"y")]})

    async def task(self, _: Any, __: Any, send: Any) -> None:
        self.seen = "the task"
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def receive(self) -> Any: ...

    async def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("stated", [b"my-id_1", b"x" * 128])
def test_a_sane_id_of_the_callers_own_is_kept(stated: bytes):
    visit = Visit(x_request_id=stated)
    assert visit.seen == stated.decode()
    assert visit.sent[0]["headers"] == [(b"x", b"y"), (b"x-request-id", stated)]


@pytest.mark.parametrize("stated", [b"", b"a b", b"a\r\nset-cookie: x", b"x" * 129, "é".encode()])
def test_an_id_that_could_harm_a_log_or_a_header_is_replaced(stated: bytes):
    visit = Visit(x_request_id=stated)
    assert len(visit.seen) == 16
    assert visit.seen != Visit().seen


@pytest.mark.parametrize(
    ("path", "method", "straight"), [("/embed", "POST", True), ("/embed", "GET", False), ("/embed/", "POST", False)]
)
def test_only_posts_to_a_tasks_own_path_go_straight_to_it(path: str, method: str, straight: bool):
    assert (Visit(path, method).seen == "the task") is straight
