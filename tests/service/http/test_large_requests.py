"""Requests that are larger than the queue get one answer, as if the client had split them."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess, resident_mib
from tests.service.polling import leave_when, sum_of, until
from tests.serving import running

QUEUE = "3000"  # tokens
SENTENCE = "the cat sat on the mat and it was a cold day by the river , so the dog walked home"
WORDS = SENTENCE.split()
TEXTS = [" ".join(WORDS[n % 7 :] + WORDS[: n % 20] + ["cat"] * (n % 30)) for n in range(1000)]
SECONDS = 300.0  # for what takes some seconds on a quiet machine
MEMORY = 128  # MiB


@pytest.fixture(scope="module")
def service(bert_artifact: Path) -> Iterator[tuple[ServiceProcess, httpx.Client]]:
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_TOKEN_BUDGET": "256", "BERT_MAX_WAITING_TOKENS": QUEUE}
    with running(settings) as (process, client):
        client.timeout = httpx.Timeout(SECONDS)
        yield process, client


@pytest.fixture(scope="module")
def client(service: tuple[ServiceProcess, httpx.Client]) -> httpx.Client:
    return service[1]


def count(client: httpx.Client, series: str) -> float:
    return sum_of(client.get("/metrics").text, series)


def vectors(client: httpx.Client, **body: Any) -> Any:
    answer = client.post("/embed", json=body, headers={"accept": "application/x-npy"})
    assert answer.status_code == 200, answer.text
    return np.load(BytesIO(answer.content))


@pytest.mark.parametrize("more", [{}, {"stride": 8}], ids=["texts", "windows"])
def test_a_thousand_texts_get_the_answer_of_small_requests(client: httpx.Client, more: dict[str, Any]) -> None:
    answered = 'bert_queue_requests_total{outcome="answered"}'
    before = count(client, answered)
    whole = vectors(client, inputs=TEXTS, **more)
    assert count(client, answered) == before + 1
    parts = [vectors(client, inputs=TEXTS[first : first + 20], **more) for first in range(0, len(TEXTS), 20)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert count(client, "bert_waiting_tokens") == 0


def test_clients_that_go_away_leave_nothing_behind(client: httpx.Client) -> None:
    cancelled = 'bert_queue_requests_total{outcome="cancelled"}'
    before = count(client, cancelled)

    def one_waits() -> bool:
        return count(client, "bert_waiting_requests") >= 1

    leave_when(one_waits, client.base_url.port or 0, TEXTS * 2, clients=8, seconds=SECONDS)
    until(lambda: count(client, "bert_waiting_tokens") + count(client, "bert_inflight_requests") <= 1, SECONDS)
    assert count(client, cancelled) > before
    assert count(client, "bert_tokenizing_requests") == 0


def test_a_large_request_takes_little_memory(service: tuple[ServiceProcess, httpx.Client]) -> None:
    process, client = service
    vectors(client, inputs=TEXTS[:32])
    rest = resident_mib(process.process.pid, children=True, peak=True)
    vectors(client, inputs=[" ".join([one] * 3) for one in TEXTS], truncate=True)
    assert resident_mib(process.process.pid, children=True, peak=True) - rest <= MEMORY
