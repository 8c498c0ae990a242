"""The line under faults and at its end, against real server processes on the golden BERT."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from benchmarks.harness.process import ServiceProcess
from tests.poison import poison_word
from tests.service.polling import scrape, until
from tests.serving import running

MANY, HALF = ({"inputs": ["a cat and a dog " * 5] * count} for count in (2000, 1000))
ENDS = ("answered", "failed", "refused", "cancelled", "expired")
# of the golden BERT: some 2 s for MANY
slow = {"BERT_TOKEN_BUDGET": "64", "BERT_THREADS": "1", "BERT_MAX_WAIT_SECONDS": "1000"}


def adds_up(values: dict[str, float]) -> bool:
    ended = sum(values[f'bert_queue_requests_total{{outcome="{end}"}}'] for end in ENDS)
    return values['bert_queue_requests_total{outcome="received"}'] == ended + values["bert_inflight_requests"]


def _receive(connection: socket.socket, last: bytes) -> bytes:
    answer = b""
    while last not in answer:
        answer += connection.recv(10_000)
        assert answer, "the connection was closed without an answer"
    return answer


def test_one_poisoned_text_among_many_callers_fails_alone(bert_artifact: Path, tmp_path: Path) -> None:
    word, _ = poison_word(bert_artifact, tmp_path / "poisoned")
    assert word not in ("the", "cat", "dog", "big", "and", "is")

    async def ask(client: httpx.AsyncClient, texts: list[str]) -> httpx.Response:
        return await client.post("/embed", json={"inputs": texts})

    async def crowd(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            requests = [["a cat"], ["the dog is big"], [f"a {word} cat"], ["a dog", "a cat"]] + [
                ["cat " * n] for n in range(1, 60)
            ]
            return await asyncio.gather(*(ask(client, texts) for texts in requests))

    with ServiceProcess({"BERT_MODEL": str(tmp_path / "poisoned")}) as process:
        answers = asyncio.run(crowd(process.url))
        with httpx.Client(base_url=process.url) as client:
            alone = client.post("/embed", json={"inputs": "a cat"})
            assert adds_up(scrape(client))
    assert [n for n, answer in enumerate(answers) if answer.status_code != 200] == [2]
    body = answers[2].json()
    assert (answers[2].status_code, body["code"], body["index"]) == (500, "not_finite", 0)
    assert answers[0].content == alone.content


def test_a_run_that_hangs_ends_the_process_and_everyone_is_answered_503(bert_artifact: Path) -> None:
    settings = {
        "BERT_MODEL": str(bert_artifact),
        "BERT_THREADS": "1",
        "BERT_TOKEN_BUDGET": "290000",
        "BERT_MAX_WAITING_TOKENS": "10000000",
    }
    settings |= {"BERT_RUN_TIMEOUT_SECONDS": "1", "BERT_DRAIN_SECONDS": "1", "BERT_MAX_WAIT_SECONDS": "100000"}
    # 284,000 tokens in one run: seconds on one core
    endless = {"inputs": ["a cat and a dog " * 28] * 2000, "pooling": "mean"}
    with running(settings) as (process, client), ThreadPoolExecutor(8) as pool:
        hanging = [pool.submit(client.post, "/embed", json=endless) for _ in range(4)]  # so that batches are full
        answers = [one.result() for one in hanging]
        assert process.process.wait(30) == 1
        output = process.output()
    assert [answer.status_code for answer in answers] == [503] * 4
    assert all("stuck" in answer.json()["error"] for answer in answers)
    assert "giving up: stuck: a run has lasted 1 s" in output


def test_sigterm_ends_with_every_request_answered_and_no_connection_reset(bert_artifact: Path) -> None:
    """Eight clients, each on its own connection, send requests until the server says that it is shutting down."""

    def ask_until_the_end(url: str) -> list[int]:
        statuses: list[int] = []
        with httpx.Client(base_url=url, timeout=60) as client:
            while not statuses or statuses[-1] == 200:
                statuses.append(client.post("/embed", json={"inputs": ["a cat " * 20] * 20}).status_code)
        return statuses

    with ServiceProcess(slow | {"BERT_MODEL": str(bert_artifact)}) as process, ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(ask_until_the_end, process.url) for _ in range(8)]
        with httpx.Client(base_url=process.url) as client:
            until(lambda: scrape(client)["bert_inflight_requests"] >= 4)
        assert process.terminate() == 0
        statuses = [one.result() for one in clients]
    assert all(each[:-1] == [200] * (len(each) - 1) and each[-1] == 503 for each in statuses)


def test_a_large_request_while_draining_gets_503_and_no_reset(bert_artifact: Path) -> None:
    """Its body, which no socket holds as a whole, is still on its way when the refusal is already certain."""
    body = json.dumps({"inputs": ["word " * 700] * 2000}).encode()
    with ServiceProcess(slow | {"BERT_MODEL": str(bert_artifact)}) as process, ThreadPoolExecutor(8) as pool:
        with (
            httpx.Client(base_url=process.url, timeout=60) as client,
            socket.create_connection(("127.0.0.1", process.port)) as late,
        ):
            late.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert _receive(late, b"}").startswith(b"HTTP/1.1 200 ")
            busy = [pool.submit(client.post, "/embed", json=HALF) for _ in range(4)]
            until(lambda: scrape(client)["bert_inflight_requests"] >= 3)
            process.process.terminate()
            until(lambda: client.post("/embed", json={"inputs": "a cat"}).status_code == 503)  # /ready is so before
            late.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body[:20_000])
            until(lambda: client.get("/ready").status_code == 503)
            late.sendall(body[20_000:])
            assert _receive(late, b"}").startswith(b"HTTP/1.1 503 ")
            assert late.recv(1) == b"", "closed, not reset"
            assert {one.result().status_code for one in busy} <= {200, 429, 503}
        assert process.process.wait(30) == 0


def test_what_does_not_finish_while_draining_gets_503(bert_artifact: Path) -> None:
    settings = slow | {"BERT_MODEL": str(bert_artifact), "BERT_DRAIN_SECONDS": "0.3"}
    with running(settings) as (process, client), ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(client.post, "/embed", json=MANY) for _ in range(6)]
        until(lambda: scrape(client)["bert_inflight_requests"] >= 3)
        with httpx.Client(base_url=process.url) as other:
            process.process.terminate()
            until(lambda: other.get("/ready").json()["status"] == "draining")
        assert process.process.wait(30) == 0
        statuses = {one.result().status_code for one in waiting}
    assert 503 in statuses
    assert statuses <= {200, 429, 503}
