"""Requests that are larger than the queue get one answer, as if the client had split them."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess
from tests.service.polling import leave_when, sum_of, until

QUEUE = 3000  # tokens
SENTENCE = "the cat sat on the mat and it was a cold day by the river , so the dog walked home"
WORDS = SENTENCE.split()
TEXTS = [" ".join(WORDS[n % 7 :] + WORDS[: n % 20] + ["cat"] * (n % 30)) for n in range(1000)]
SECONDS = 300.0  # for what takes some seconds on a quiet machine
MEMORY = 128 * 2**20


class Service(ServiceProcess):
    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=SECONDS)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=SECONDS)

    @property
    def highest_memory(self) -> int:
        """Bytes, of all processes together."""
        of_self = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        lines = [Path(f"/proc/{one}/status").read_text().splitlines() for one in (self.process.pid, *of_self)]
        return sum(1024 * int(line.split()[1]) for one in lines for line in one if line.startswith("VmHWM:"))

    def count(self, series: str) -> float:
        return sum_of(self.get("/metrics").text, series)


@pytest.fixture(scope="module")
def service(bert_artifact: Path) -> Iterator[Service]:
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_TOKEN_BUDGET": "256"}
    with Service(settings | {"BERT_MAX_WAITING_TOKENS": str(QUEUE)}) as running:
        yield running


def vectors(service: Service, **body: Any) -> Any:
    answer = service.post("/embed", body, accept="application/x-npy")
    assert answer.status_code == 200, answer.text
    return np.load(BytesIO(answer.content))


@pytest.mark.parametrize("more", [{}, {"stride": 8}], ids=["texts", "windows"])
def test_a_thousand_texts_get_the_answer_of_small_requests(service: Service, more: dict[str, Any]) -> None:
    answered = 'bert_queue_requests_total{outcome="answered"}'
    before = service.count(answered)
    whole = vectors(service, inputs=TEXTS, **more)
    assert service.count(answered) == before + 1
    parts = [vectors(service, inputs=TEXTS[first : first + 20], **more) for first in range(0, len(TEXTS), 20)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert service.count("bert_waiting_tokens") == 0


def test_token_ids_and_pairs_are_served_in_parts_too(service: Service) -> None:
    name = service.get("/v1/models").json()["data"][0]["id"]
    tokens = service.post("/tokenize", {"inputs": TEXTS[:100]}).json()
    ids = [[token["id"] for token in one if not token["special"]] for one in tokens]
    bodies: list[dict[str, Any]] = [{"input": TEXTS[:100]}, {"input": ids, "tokenizer": name}]
    of_texts, of_ids = (service.post("/v1/embeddings", body) for body in bodies)
    assert (of_texts.status_code, of_texts.content) == (200, of_ids.content)
    pairs = service.post("/nsp", {"inputs": [[one, "a dog"] for one in TEXTS]})
    assert (pairs.status_code, len(pairs.json())) == (200, len(TEXTS))


def test_an_invalid_text_in_a_later_part_is_named_by_its_index(service: Service) -> None:
    answer = service.post("/embed", {"inputs": [*TEXTS, "cat " * 600]})
    assert (answer.status_code, answer.json()["code"], answer.json()["index"]) == (422, "too_long", 1000)
    until(lambda: service.count("bert_waiting_tokens") == 0, SECONDS)


def test_the_deadline_of_the_client_stays_what_it_is(service: Service) -> None:
    answer = service.post("/embed", {"inputs": TEXTS}, **{"x-request-timeout-ms": "5"})
    assert (answer.status_code, answer.json()["code"]) in {(413, "too_much_for_deadline"), (503, "deadline")}


def test_clients_that_go_away_leave_nothing_behind(service: Service) -> None:
    cancelled = 'bert_queue_requests_total{outcome="cancelled"}'
    before = service.count(cancelled)

    def one_waits() -> bool:
        return service.count("bert_waiting_requests") >= 1

    leave_when(one_waits, service.port, TEXTS * 2, clients=8, seconds=SECONDS)
    until(lambda: service.count("bert_waiting_tokens") + service.count("bert_inflight_requests") <= 1, SECONDS)
    assert service.count(cancelled) > before
    assert service.count("bert_tokenizing_requests") == 0


def test_a_large_request_takes_little_memory(service: Service) -> None:
    vectors(service, inputs=TEXTS[:32])
    rest = service.highest_memory
    vectors(service, inputs=[" ".join([one] * 3) for one in TEXTS], truncate=True)
    assert service.highest_memory - rest <= MEMORY
