"""Requests are answered in order, repeated while the server is busy, and their number follows what the server takes."""

import json
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

import httpx
import pytest

from packbert.service.library import client
from packbert.service.library.client import Concurrency, Sender
from packbert.service.library.files import Input
from packbert.service.library.job import Answers, RequestFailed

Handler = Callable[[httpx.Request], httpx.Response]


def make_sender(handler: Handler, *, max_requests: int = 4, patience_seconds: float = 60.0) -> Sender:
    http = httpx.Client(transport=httpx.MockTransport(handler), base_url="http://test")
    return Sender(http, max_requests=max_requests, patience_seconds=patience_seconds)


def failure_of(handler: Handler, *, patience_seconds: float = 60.0) -> RequestFailed:
    found = make_sender(handler, patience_seconds=patience_seconds).send("/embed", {}, accept="application/json")
    assert isinstance(found, RequestFailed)
    return found


def number_of(request: httpx.Request) -> int:
    number: int = json.loads(request.content)["number"]
    return number


def run(sender: Sender, chunks: Iterable[list[Input]]) -> Iterator[tuple[Answers, list[Input]]]:
    def answer(chunk: list[Input]) -> Answers:
        response = sender.send("/embed", {"number": int(str(chunk[0]))}, accept="application/json")
        return response if isinstance(response, RequestFailed) else [response.json()]

    return sender.run_in_order(chunks, answer)


def test_answers_come_in_the_order_of_chunks_though_some_are_refused() -> None:
    refused: set[int] = set()

    def handle(request: httpx.Request) -> httpx.Response:
        number = number_of(request)
        if number % 3 == 0 and number not in refused:
            refused.add(number)
            return httpx.Response(429, headers={"retry-after": "0"}, json={"error": "the queue is full"})
        return httpx.Response(200, json=number)

    chunks: list[list[Input]] = [[str(number)] for number in range(50)]
    assert list(run(make_sender(handle), chunks)) == [([number], chunk) for number, chunk in enumerate(chunks)]
    assert refused == set(range(0, 50, 3))


def test_a_get_waits_between_its_attempts_as_long_as_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def refuse(_: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        raise httpx.ConnectError("there is no server")

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    found = make_sender(refuse, patience_seconds=300.0).send("/info", None, accept="application/json")
    assert isinstance(found, RequestFailed)
    assert now > 300 - client.MAX_PAUSE_SECONDS
    assert asked < 60


def test_few_chunks_are_read_ahead() -> None:
    read = 0

    def chunks() -> Iterator[list[Input]]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield [str(number)]

    sender = make_sender(lambda request: httpx.Response(200, json=number_of(request)), max_requests=4)
    found = run(sender, chunks())
    next(found)
    assert read <= 8
    found.close()  # type: ignore[attr-defined]


def test_a_get_waits_for_no_request() -> None:
    sender = make_sender(lambda request: httpx.Response(200, json=request.method))
    sender.concurrency.on_refusal(3600.0)
    response = sender.send("/info", None, accept="application/json")
    assert isinstance(response, httpx.Response)
    assert response.json() == "GET"


@pytest.mark.parametrize("status", [400, 401, 413, 422, 501])
def test_an_error_of_the_request_is_returned_at_once_with_its_index(status: int) -> None:
    calls = []

    def handle(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(status, json={"error": "input has 613 tokens", "code": "too_long", "index": 3})

    found = failure_of(handle)
    assert (found.status, found.index, str(found)) == (status, 3, "input has 613 tokens")
    assert len(calls) == 1


def test_a_server_that_cannot_be_reached_is_given_up_after_the_patience() -> None:
    def handle(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    found = failure_of(handle, patience_seconds=0.0)
    assert str(found) == "no server answers at http://test/embed: connection refused"


@pytest.mark.parametrize(
    "error",
    [
        httpx.UnsupportedProtocol("Request URL is missing a protocol"),
        httpx.LocalProtocolError("Illegal header value"),
        httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"),
    ],
)
def test_an_error_that_does_not_pass_is_returned_at_once(error: httpx.RequestError) -> None:
    calls = []

    def handle(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        raise error

    found = failure_of(handle)
    assert str(error) in str(found)
    assert len(calls) == 1


def test_a_busy_server_is_given_up_with_its_own_words() -> None:
    def handle(_: httpx.Request) -> httpx.Response:
        return httpx.Response(429, headers={"retry-after": "20"}, json={"error": "the queue is full"})

    found = failure_of(handle, patience_seconds=10.0)
    assert (found.status, str(found)) == (429, "the queue is full")


def test_an_answer_of_another_server_is_quoted() -> None:
    found = failure_of(lambda _: httpx.Response(404, text="<html>nothing"))
    assert str(found) == "HTTP 404: <html>nothing"


def test_answers_raise_the_number_of_requests_and_a_refusal_halves_it_once() -> None:
    now = [0.0]
    concurrency = Concurrency(8, clock=lambda: now[0])
    for _ in range(100):
        concurrency.on_answer()
    assert concurrency.allowed == 8
    concurrency.on_refusal(2.0)
    concurrency.on_refusal(1.0)
    assert concurrency.allowed == 4
    now[0] = 3.0
    for _ in range(5):
        now[0] += 3.0
        concurrency.on_refusal(2.0)
    assert concurrency.allowed == 1
