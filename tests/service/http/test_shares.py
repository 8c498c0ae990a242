"""A share of a model's requests for another one, which answers them (weight) or repeats them (shadow)."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
import numpy as np
import pytest

from packbert.service import turns
from packbert.service.artifact import open_artifact
from packbert.service.http import shares
from packbert.service.http.app import create_app
from packbert.service.http.shares import compare
from packbert.service.models import Models
from packbert.service.tasks.flow import TaskResult
from tests.export.goldens import Exported
from tests.service.engine.test_swaps import make_service
from tests.service.fakes import on_loop, opened
from tests.service.in_process import client_of
from tests.service.polling import sum_of, until
from tests.serving import running

TEXTS = ["my dog is hairy", "it rains"]
MASKS = "the [MASK] is [MASK]"
TENSORS = [{"name": "text", "datatype": "BYTES", "shape": [2], "data": TEXTS}]


@pytest.fixture(scope="module")
def old(exported: Exported) -> Path:
    """Has fill_mask, and no labels."""
    return exported("bert").root


@pytest.fixture(scope="module")
def new(exported: Exported) -> Path:
    """Has labels, and no fill_mask; other tokens."""
    return exported("distilbert-labels").root


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "PATIENCE_SECONDS", 60.0)


class Service:
    """The models `one` and `two` in this process, the second of which has a share of the requests of the first."""

    def __init__(self, models: Models, client: httpx.AsyncClient) -> None:
        self.models, self.client = models, client

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """A request that ends with its task."""
        answer = await asyncio.create_task(self.client.post(path, json=body))
        assert answer.status_code == 200, answer.text
        return answer

    async def sums(self, *series: str) -> list[float]:
        metrics = (await self.client.get("/metrics")).text
        return [sum_of(metrics, one) for one in series]

    async def outcomes(self, *names: str) -> list[float]:
        return await self.sums(*(f'bert_shared_requests_total{{model="two",outcome="{name}"}}' for name in names))

    async def repeated(self) -> None:
        """Until the last request has been repeated."""
        await asyncio.sleep(0)
        assert self.models.group["two"].repeating is not None
        await self.models.group["two"].repeating


@asynccontextmanager
async def sharing(folder: Path, one: Path, two: Path, share: str) -> AsyncIterator[Service]:
    (file := folder / "models.yaml").write_text(f"one: {one}\ntwo: {{model: {two}, of: one, {share}}}\n")
    made = make_service(one, two, BERT_MODELS=str(file), BERT_RERANK="cosine")
    async with opened(made) as models, client_of(create_app(models)) as client:
        yield Service(models, client)


def digest_of(answer: httpx.Response) -> str:
    return answer.headers["x-model-digest"]


@on_loop
async def test_a_weight_is_the_share_of_requests_that_the_other_model_answers(
    old: Path, new: Path, tmp_path: Path
) -> None:
    mine, its = open_artifact(old).digest, open_artifact(new).digest
    async with sharing(tmp_path, old, new, "weight: 0.5") as service:
        answers = [await service.post("/embed", inputs=TEXTS) for _ in range(256)]
        counts = Counter(map(digest_of, answers))
        assert counts.keys() == {mine, its}
        assert min(counts.values()) > 64  # 8 standard deviations
        assert await service.outcomes("answered") == [counts[its]]
        assert len({(digest_of(one), one.content) for one in answers}) == 2
        for name, expected in {"one": {mine, its}, "two": {its}}.items():  # also by the path
            path = f"/models/{name}/embed"
            assert {digest_of(await service.post(path, inputs=TEXTS)) for _ in range(64)} == expected


@on_loop
async def test_a_task_that_the_other_model_lacks_is_answered_by_the_model(old: Path, new: Path, tmp_path: Path) -> None:
    mine, its = open_artifact(old).digest, open_artifact(new).digest
    async with sharing(tmp_path, old, new, "weight: 1") as service:
        answered = [digest_of(await service.post(path, inputs=MASKS)) for path in ("/embed", "/fill-mask", "/")]
        assert answered == [its, mine, mine]  # what / does depends on the heads
        ids = await service.post("/embed", inputs=[[20, 30]], tokenizer="one")  # of the other they would be other words
        assert digest_of(ids) == mine
        assert await service.outcomes("answered", "left") == [1, 2]


@on_loop
async def test_an_unexpected_failure_of_the_other_model_is_logged(
    old: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __getattr__(self, _: str) -> NoReturn:
            raise RuntimeError("of no known kind")

    async with sharing(tmp_path, old, old, "weight: 1") as service:
        service.models.group["two"].current.tasks = Broken()  # type: ignore[assignment]
        await service.post("/embed", inputs=TEXTS)
        assert await service.outcomes("left") == [1]
    assert "a request could not be answered by two" in caplog.messages


@pytest.mark.parametrize(
    ("checkpoint", "asked"),
    [
        (
            "bert",
            {
                "/embed": ({"inputs": TEXTS}, 2, 0),
                "/embed_all": ({"inputs": ["my dog"]}, 4, 0),
                "/embed?": ({"inputs": TEXTS, "layers": [0, 1]}, 4, 0),
                "/v1/embeddings": ({"input": TEXTS, "encoding_format": "base64"}, 2, 0),
                "/v1/embed": ({"texts": TEXTS, "embedding_types": ["int8", "ubinary"]}, 2, 0),
                "/api/embed": ({"input": TEXTS}, 2, 0),
                "/similarity": ({"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}, 2, 0),
                "/v2/models/one/infer": ({"inputs": TENSORS}, 2, 0),
                "/fill-mask": ({"inputs": MASKS}, 0, 2),
                "/attention": ({"inputs": TEXTS[0]}, 0, 0),
                "/rerank": ({"query": TEXTS[0], "documents": TEXTS}, 0, 1),
                "/v1/score": ({"text_1": TEXTS[0], "text_2": TEXTS}, 2 + 1, 0),
            },
        ),
        (
            "roberta-labels",
            {
                "/v2/models/one/infer": ({"inputs": TENSORS}, 0, 2),
                "/predict": ({"inputs": [[one] for one in TEXTS]}, 0, 2),
                "/classify": ({"input": TEXTS}, 0, 2),
                "/pooling": ({"input": TEXTS, "encoding_format": "base64"}, 0, 2),
            },
        ),
        (
            "distilbert-labels",
            {
                "/rerank": ({"query": TEXTS[0], "documents": TEXTS}, 0, 1),
                "/rerank?": ({"query": TEXTS[0], "texts": TEXTS}, 0, 1),
                "/v1/ranking": ({"query": {"text": "a"}, "passages": [{"text": one} for one in TEXTS]}, 0, 1),
                "/score": ({"text_1": TEXTS[0], "text_2": TEXTS}, 0, 0),
            },
        ),
    ],
)
@on_loop
async def test_each_route_is_compared_by_what_the_model_computed(
    exported: Exported,
    tmp_path: Path,
    checkpoint: str,
    asked: dict[str, tuple[dict[str, Any], int, int]],
) -> None:
    """By vectors or by first candidates and labels, in whatever form a response has them."""
    folder, found = exported(checkpoint).root, {}
    series = [f'bert_shadow_cosine_{one}{{model="two"}}' for one in ("count", "sum")]
    series += [f'bert_shadow_first_candidates_total{{agrees="{one}",model="two"}}' for one in ("true", "false")]
    seconds = [f'bert_shadow_seconds_{one}{{by="{by}"' for one in ("count", "sum") for by in ("model", "shadow")]
    async with sharing(tmp_path, folder, folder, "shadow: 1") as service:
        for path, (body, _, _) in asked.items():
            before = await service.sums(*series)
            await service.post(path, **body)
            await service.repeated()
            found[path] = [round(now - then, 3) for now, then in zip(await service.sums(*series), before, strict=True)]
        *counts, of_model, of_shadow = await service.sums(*seconds)
        assert counts == 2 * await service.outcomes("compared") == 2 * [len(asked)]
        assert min(of_model, of_shadow) > 0
    assert found == {path: [cosines, cosines, firsts, 0] for path, (_, cosines, firsts) in asked.items()}


def compared(first: Any, second: Any) -> tuple[list[list[float]], list[bool]]:
    """The cosines of each turn, and what agrees, of two results with these values to be compared."""
    cosines, agreements, turns = [], [], 0

    async def story() -> None:
        nonlocal turns
        results = [TaskResult(compared=one, received=0.0) for one in (first, second)]
        comparison = asyncio.create_task(compare_all(*results))
        while not comparison.done():
            turns += 1
            await asyncio.sleep(0)

    async def compare_all(*results: TaskResult) -> None:
        async for of_rows, agree in compare(*results):
            cosines.append(of_rows)
            agreements.extend(agree)

    asyncio.run(story())
    assert turns >= len(cosines)
    return cosines, agreements


def test_vectors_of_one_size_are_compared_some_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    first, second = (np.array(rows, np.float32) for rows in ([[1, 0], [0, 2]], [[3, 0], [1, 1]]))
    (cosines,), agreements = compared([first], [second])
    assert cosines == pytest.approx([1.0, 0.5**0.5])
    assert agreements == []
    assert compared([first, "a", "b"], [np.ones((300, 3)), "a", "c"]) == ([[], []], [True, False])
    many, _ = compared(2 * [np.ones((1000, 768), np.float32)], 2 * [np.ones((1000, 768), np.float32)])
    assert sum(map(len, many)) == 2000
    assert max(map(len, many)) * 768 <= shares.NUMBERS_AT_ONCE + 768


@on_loop
async def test_a_shadow_that_fails_is_counted_and_changes_no_answer(old: Path, new: Path, tmp_path: Path) -> None:
    async with sharing(tmp_path, old, new, "shadow: 1") as service:
        answers = []
        for _ in range(2):
            answers.append((await service.post("/fill-mask", inputs=MASKS)).content)
            await service.repeated()
        assert answers[0] == answers[1]
        assert await service.outcomes("failed") == [2]
        assert await service.sums("bert_shadow_first_candidates_total") == [0]


@on_loop
async def test_a_shadow_is_dropped_while_another_request_is_answered(old: Path, tmp_path: Path) -> None:
    async with sharing(tmp_path, old, old, "shadow: 1") as service:
        await asyncio.gather(*(service.post("/embed", inputs=TEXTS * 20) for _ in range(4)))
        assert (await service.outcomes("dropped"))[0] >= 1


def test_a_signal_changes_the_shares_and_the_model_of_every_process(old: Path, new: Path, tmp_path: Path) -> None:
    (file := tmp_path / "models.yaml").write_text(f"# by name\nold: {old}\nnew: {{model: {new}, of: old}}\n")
    mine, its = open_artifact(old).digest, open_artifact(new).digest
    settings = {"BERT_MODELS": str(file), "BERT_TOKEN_BUDGET": "256", "BERT_WORKERS": "2"}
    with running(settings) as (process, client):

        def digests() -> set[str]:
            return {digest_of(client.post("/embed", json={"inputs": TEXTS})) for _ in range(16)}

        def read_again(content: str) -> None:
            file.write_text(content)
            process.process.send_signal(signal.SIGHUP)

        assert digests() == {mine}
        assert client.post("/admin/models", json={"model": "old"}).status_code == 404
        read_again(f"old: {old}\nnew: {{model: {new}, of: old, weight: 1}}\n")
        until(lambda: digests() == {its})
        assert digest_of(client.post("/fill-mask", json={"inputs": MASKS})) == mine
        read_again(f"old: {new}\nnew: {new}\n")  # it is the model from now on
        until(lambda: "old: swapped" in process.output())
        until(lambda: client.post("/fill-mask", json={"inputs": MASKS}).status_code == 501)
        assert digests() == {its}
        read_again("old")
        until(lambda: "nothing is swapped" in process.output())
        assert digests() == {its}
