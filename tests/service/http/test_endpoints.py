"""A task's route as plain ASGI, before a tokenizer or a line: bodies over the limit, callers who leave, and what nobody foresaw."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from service.errors import Invalid
from service.http.disconnect import PRESENCE, ClientConnection
from service.http.endpoints import TASKS, TaskEndpoint, parse
from service.metrics import Metrics
from service.settings import Settings
from service.tasks import schemas


class Loading:
    """A service whose model is not there: whoever gets so far is told, by an error that nobody foresaw."""

    draining = False

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings.model_validate({"artifact": "."} | settings)
        self.metrics = Metrics()

    @property
    def tasks(self) -> Any:
        raise RuntimeError("nobody foresaw this")

    def check_admission(self, body_bytes: int) -> None: ...


class Visit:
    """One POST to /embed, and what came of it."""

    def __init__(
        self, serving: Loading, *, parts: Sequence[bytes] = (b"{}",), leaves: bool = False, **headers: bytes
    ) -> None:
        self.serving, self.presence = serving, ClientConnection()
        self.messages = [
            {"type": "http.request", "body": part, "more_body": leaves or n + 1 < len(parts)}
            for n, part in enumerate(parts)
        ]
        self.sent: list[Any] = []
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/embed", "state": {PRESENCE: self.presence}}
        scope["headers"] = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        route = TaskEndpoint(serving, TASKS["/embed"])  # type: ignore[arg-type]  # a service is more than a route asks of it
        asyncio.run(route(scope, self.receive, self.send))

    async def receive(self) -> Any:
        return self.messages.pop(0) if self.messages else {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def error(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.sent[1]["body"])
        return content

    def counted(self, reason: str) -> bool:
        return f'bert_errors_total{{reason="{reason}"}} 1.0' in self.serving.metrics.text().decode()


def test_a_stated_length_over_the_limit_is_refused_before_a_byte_is_read():
    visit = Visit(Loading(max_body_bytes=100), content_length=b"101", parts=[b"x"])
    assert (visit.status, visit.error["code"]) == (413, "body_too_large")
    assert "101 bytes" in visit.error["error"]
    assert len(visit.messages) == 1


@pytest.mark.parametrize(
    "stated", [None, b"", b"secret", b"Bearer", b"Bearer secre", b"Bearer secret2", b"bearer secret", b"Bearer \xff"]
)
def test_without_the_key_a_request_is_refused_before_a_byte_is_read(stated: bytes | None):
    visit = Visit(Loading(api_key="secret"), **{} if stated is None else {"authorization": stated})
    assert (visit.status, visit.error["code"]) == (401, "unauthorized")
    assert "secret" not in visit.error["error"]
    assert len(visit.messages) == 1
    assert visit.counted("unauthorized")


@pytest.mark.parametrize(
    ("key", "headers"),
    [("secret", {"authorization": b"Bearer secret"}), ("", {}), ("", {"authorization": b"Bearer other"})],
)
def test_with_the_key_or_where_none_is_set_a_request_goes_on(key: str, headers: dict[str, bytes]):
    assert Visit(Loading(api_key=key), **headers).status == 500  # so far: the tasks were asked for


def test_a_chunked_body_is_refused_when_it_passes_the_limit_and_not_read_on():
    visit = Visit(Loading(max_body_bytes=100), parts=[b"x" * 60] * 5)
    assert (visit.status, visit.error["code"]) == (413, "body_too_large")
    assert len(visit.messages) == 3
    assert visit.counted("too_large")


def test_a_body_in_parts_up_to_the_limit_is_read_to_its_end():
    visit = Visit(Loading(max_body_bytes=100), content_length=b"100", parts=[b"x" * 60, b"y" * 40])
    assert visit.status == 500  # so far: the tasks were asked for
    assert not visit.messages


def test_a_caller_who_leaves_before_the_body_is_whole_has_left():
    visit = Visit(Loading(), parts=[b"{"], leaves=True)
    assert visit.status == 499
    assert visit.counted("client_closed")


@pytest.mark.parametrize(
    "shown",
    [{}, {"authorization": b"Bearer secre"}, {"authorization": b"secret"}, {"authorization": b"Bearer secret\xff"}],
)
def test_where_a_key_is_set_whoever_does_not_show_it_is_refused_before_the_body_is_read(shown: dict[str, bytes]):
    visit = Visit(Loading(api_key="secret"), **shown)
    assert (visit.status, visit.error["code"]) == (401, "unauthorized")
    assert (b"www-authenticate", b"Bearer") in visit.sent[0]["headers"]
    assert len(visit.messages) == 1
    assert visit.counted("unauthorized")


def test_whoever_shows_the_key_is_let_in():
    assert Visit(Loading(api_key="secret"), authorization=b"Bearer secret").counted(
        "internal"
    )  # so far: the tasks were asked for


def test_what_nobody_foresaw_is_told_in_the_one_shape_counted_and_logged(caplog: pytest.LogCaptureFixture):
    visit = Visit(Loading(), x_request_id=b"mine")
    assert (visit.status, visit.error["code"], visit.error["request_id"]) == (500, "internal", "mine")
    assert "foresaw" not in visit.error["error"]
    assert "nobody foresaw this" in caplog.text
    assert "mine" in caplog.text
    assert visit.counted("internal")


@pytest.mark.parametrize("item", ["1", "[1]", "{}", "null", "[[]]"])
@pytest.mark.parametrize("field", ["inputs", "targets"])
@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_list_of_many_faults_is_one_fault(task: Any, field: str, item: str):
    body = (
        f'{{"{"input" if field == "inputs" and task.name == "embeddings" else field}": [{", ".join([item] * 1000)}]}}'
    )
    with pytest.raises(ValidationError) as raised:
        task.body.model_validate_json(body)
    assert raised.value.error_count() < 10


def test_many_unknown_fields_are_counted_and_not_listed():
    with pytest.raises(
        Invalid,
        match=r"the body has 1000 faults, unknown fields above all; this route takes truncate, .*inputs, pooling",
    ):
        parse(schemas.EmbedRequest, json.dumps({f"field {n}": n for n in range(999)}).encode())


@pytest.mark.parametrize(
    ("schema", "body", "message", "index"),
    [
        (schemas.EmbedRequest, {"inputs": 5}, "inputs: Input should be a valid string or a valid array", None),
        (schemas.EmbedRequest, {"inputs": ["a", 5]}, "inputs.1: Input should be a valid string", 1),
        (
            schemas.EmbedRequest,
            {"inputs": "a", "top": 1},
            "top: Extra inputs are not permitted; this route takes truncate, ",
            None,
        ),
        (schemas.EmbedRequest, {"inputs": "a", "k" * 10_000: 1}, "k" * 100 + ": Extra inputs", None),
        (schemas.EmbedRequest, [], "body: Input should be an object", None),
        (schemas.NspRequest, {"inputs": ["a", "b"]}, "inputs.0: Input should be an object or a valid array", 0),
        (schemas.NspRequest, {"inputs": [["a", "b"], ["a", 1]]}, "inputs.1.1: Input should be a valid string", 1),
        (
            schemas.FillMaskRequest,
            {"inputs": "[MASK]", "targets": ["a", 1]},
            "targets.1: Input should be a valid string",
            None,
        ),
    ],
)
def test_a_fault_is_told_by_its_place_and_by_what_could_stand_there(
    schema: type[BaseModel], body: Any, message: str, index: int | None
):
    with pytest.raises(Invalid) as raised:
        parse(schema, json.dumps(body).encode())
    assert raised.value.message.startswith(message)
    assert raised.value.index == index
