"""A share of a model's requests for another one, which answers them (weight) or repeats them (shadow)."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.service import turns
from packbert.service.artifact import open_artifact
from packbert.service.http import shares
from packbert.service.http.app import create_app
from packbert.service.http.shares import compare
from packbert.service.settings import Settings, SettingsError
from packbert.service.tasks.flow import TaskResult
from tests.export.goldens import Artifact
from tests.service.engine.test_swaps import served
from tests.service.fakes import on_loop, opened
from tests.service.in_process import client_of
from tests.service.polling import repeated, sum_of, until
from tests.serving import REPLY_SECONDS

TEXTS = ["my dog is hairy", "it rains"]
MASKS = "the [MASK] is [MASK]"
TENSORS = [{"name": "text", "datatype": "BYTES", "shape": [2], "data": TEXTS}]
OWN = {"BERT_TOKEN_BUDGET": "256"}  # nothing to measure at a start
CLIENT = httpx.Client(headers={"connection": "close"}, timeout=REPLY_SECONDS)


@pytest.fixture(scope="module")
def old(exported: Callable[..., Artifact]) -> Path:
    """Has fill_mask, and no labels."""
    return exported("sample").root


@pytest.fixture(scope="module")
def new(exported: Callable[..., Artifact]) -> Path:
    """Has labels, and no fill_mask; other tokens and sizes."""
    return exported("distilbert-labels").root


class Start(Protocol):
    def __call__(self, content: str) -> tuple[ServiceProcess, Path]: ...


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a service of this file of models, one for all tests that have the same."""
    with ExitStack() as stack:

        @cache
        def started(content: str) -> tuple[ServiceProcess, Path]:
            (file := tmp_path_factory.mktemp("models") / "models.yaml").write_text(content)
            settings = OWN | {"BERT_MODELS": str(file)}
            return stack.enter_context(ServiceProcess(settings)), file

        yield started


def post(service: ServiceProcess, path: str, **body: Any) -> httpx.Response:
    """Over a new connection, so that any worker answers."""
    answer = CLIENT.post(service.url + path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def digest_of(answer: httpx.Response) -> str:
    return answer.headers["x-model-digest"]


def scrape(service: ServiceProcess, series: str) -> float:
    return sum_of(CLIENT.get(f"{service.url}/metrics").text, series)


def outcome(name: str) -> str:
    return f'bert_shared_requests_total{{model="new",outcome="{name}"}}'


def test_a_weight_is_the_share_of_requests_that_the_other_model_answers(start: Start, old: Path, new: Path) -> None:
    service, _ = start(f"old: {old}\nnew: {{model: {new}, of: old, weight: 0.5}}\n")
    answers = [post(service, "/embed", inputs=TEXTS) for _ in range(256)]
    counts = Counter(map(digest_of, answers))
    assert counts.keys() == {open_artifact(old).digest, open_artifact(new).digest}
    assert min(counts.values()) > 64  # 8 standard deviations
    assert scrape(service, outcome("answered")) == counts[open_artifact(new).digest]
    assert len({(digest_of(one), len(one.json()[0])) for one in answers}) == 2
    for name, folder in {"old": old, "new": new}.items():  # a request that names a model by path or body, too
        named = [digest_of(post(service, f"/models/{name}/embed", inputs=TEXTS)) for _ in range(64)]
        assert set(named) == ({open_artifact(folder).digest} if name == "new" else counts.keys())


def test_a_task_that_the_other_model_lacks_is_answered_by_the_model(start: Start, old: Path, new: Path) -> None:
    service, _ = start(f"old: {old}\nnew: {{model: {new}, of: old, weight: 1}}\n")
    answered = {path: digest_of(post(service, path, inputs=MASKS)) for path in ("/embed", "/fill-mask", "/")}
    mine, its = open_artifact(old).digest, open_artifact(new).digest
    assert answered == {"/embed": its, "/fill-mask": mine, "/": mine}  # what / does depends on the heads
    ids = post(service, "/embed", inputs=[[200, 300]], tokenizer="old")  # of the other one they would be other words
    assert digest_of(ids) == mine
    assert [scrape(service, outcome(one)) for one in ("answered", "left")] == [1, 2]


def test_an_unexpected_failure_of_the_other_model_is_logged(
    old: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file := tmp_path / "models.yaml").write_text(f"one: {old}\ntwo: {{model: {old}, of: one, weight: 1}}\n")

    class Broken:
        def __getattr__(self, _: str) -> NoReturn:
            raise RuntimeError("of no known kind")

    async def story() -> None:
        stated = served({"bert": old}, BERT_MODELS=str(file))
        async with opened(stated) as models, client_of(create_app(models)) as client:
            models.group["two"].current.tasks = Broken()  # type: ignore[assignment]
            answer = await client.post("/embed", json={"inputs": TEXTS})
            metrics = (await client.get("/metrics")).text
        assert answer.status_code == 200
        assert sum_of(metrics, 'bert_shared_requests_total{model="two",outcome="left"}') == 1

    asyncio.run(story())
    assert "a request could not be answered by two" in caplog.messages


@pytest.mark.parametrize(
    ("checkpoint", "asked"),
    [
        (
            "sample",
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
    exported: Callable[..., Artifact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: str,
    asked: dict[str, tuple[dict[str, Any], int, int]],
) -> None:
    """By vectors or by first candidates and labels, in whatever form a response has them."""
    monkeypatch.setattr(shares, "PATIENCE_SECONDS", 60.0)
    folder, found = exported(checkpoint).root, {}
    (file := tmp_path / "models.yaml").write_text(f"one: {folder}\ntwo: {{model: {folder}, of: one, shadow: 1}}\n")
    stated = served({"bert": folder}, BERT_MODELS=str(file), BERT_RERANK="cosine")
    async with opened(stated) as models, client_of(create_app(models)) as client:

        async def counts() -> list[float]:
            metrics = (await client.get("/metrics")).text
            cosine = [f'bert_shadow_cosine_{one}{{model="two"}}' for one in ("count", "sum")]
            firsts = [f'bert_shadow_first_candidates_total{{agrees="{one}",model="two"}}' for one in ("true", "false")]
            return [sum_of(metrics, series) for series in (*cosine, *firsts)]

        for path, (body, _, _) in asked.items():
            before = await counts()
            answer = await asyncio.create_task(client.post(path, json=body))  # the request ends with its task
            assert answer.status_code == 200, answer.text
            await asyncio.sleep(0)
            assert models.group["two"].repeating is not None
            await models.group["two"].repeating
            found[path] = [round(now - then, 3) for now, then in zip(await counts(), before, strict=True)]
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


def test_an_equal_shadow_agrees_and_answers_nothing(start: Start, old: Path) -> None:
    service, _ = start(f"old: {old}\nnew: {{model: {old}, of: old, shadow: 1}}\n")
    bodies: dict[str, dict[str, Any]] = {
        "/embed": {"inputs": TEXTS},
        "/v1/embeddings": {"input": TEXTS, "encoding_format": "base64"},
        "/similarity": {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}},
        "/v2/models/old/infer": {"inputs": TENSORS},
        "/fill-mask": {"inputs": MASKS},
    }
    for path, body in bodies.items():
        before = scrape(service, outcome("compared"))

        def is_compared(path: str = path, body: dict[str, Any] = body, before: float = before) -> bool:
            assert digest_of(post(service, path, **body)) == open_artifact(old).digest
            return scrape(service, outcome("compared")) > before

        until(is_compared)  # one that another request hinders is dropped
    cosines = scrape(service, 'bert_shadow_cosine_count{model="new"}')
    assert cosines >= 8
    assert scrape(service, 'bert_shadow_cosine_sum{model="new"}') == pytest.approx(cosines, abs=1e-4)
    assert scrape(service, 'bert_shadow_first_candidates_total{agrees="true",model="new"}') >= 2
    assert scrape(service, 'bert_shadow_first_candidates_total{agrees="false",model="new"}') == 0
    for by in ("model", "shadow"):
        assert scrape(service, f'bert_shadow_seconds_count{{by="{by}",model="new"}}') >= 3
        assert scrape(service, f'bert_shadow_seconds_sum{{by="{by}",model="new"}}') > 0


def test_a_shadow_that_fails_is_counted_and_changes_no_answer(start: Start, old: Path, new: Path) -> None:
    service, _ = start(f"old: {old}\nnew: {{model: {new}, of: old, shadow: 1}}\n")
    answers = []

    def has_failed() -> bool:
        answers.append(post(service, "/fill-mask", inputs=MASKS).content)
        return scrape(service, outcome("failed")) > 0

    until(has_failed)
    assert len(set(answers)) == 1
    assert scrape(service, "bert_shadow_first_candidates_total") == 0


def test_a_shadow_is_dropped_while_another_request_is_answered(start: Start, old: Path) -> None:
    service, _ = start(f"old: {old}\nnew: {{model: {old}, of: old, shadow: 1}}\n")
    before = scrape(service, outcome("dropped"))
    with repeated(lambda: post(service, "/embed", inputs=TEXTS * 20)):
        until(lambda: scrape(service, outcome("dropped")) > before)


def test_a_signal_changes_the_shares_and_the_model_of_every_process(start: Start, old: Path, new: Path) -> None:
    service, file = start(f"old: {old}\nnew: {{model: {new}, of: old}}\n")

    def digests() -> set[str]:
        return {digest_of(post(service, "/embed", inputs=TEXTS)) for _ in range(16)}

    mine, its = open_artifact(old).digest, open_artifact(new).digest
    assert digests() == {mine}
    file.write_text(f"old: {old}\nnew: {{model: {new}, of: old, weight: 1}}\n")
    service.process.send_signal(signal.SIGHUP)
    until(lambda: digests() == {its})
    assert digest_of(post(service, "/fill-mask", inputs=MASKS)) == mine
    file.write_text(f"old: {new}\nnew: {new}\n")  # it is the model from now on
    service.process.send_signal(signal.SIGHUP)
    until(lambda: "old: swapped" in service.output())
    until(lambda: CLIENT.post(f"{service.url}/fill-mask", json={"inputs": MASKS}).status_code == 501)
    assert digests() == {its}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("a: {model: x, wieght: 0.1}", "a: wieght: unknown key, known are model, of, weight, shadow; write NAME"),
        ("a: {model: x, weight: 2}", "a: weight: Input should be less than or equal to 1; write NAME: MODEL or"),
        ("a: {model: [x]}", "a: model: Input should be a valid string; write NAME: MODEL or NAME: {model: MODEL"),
        ("a: x\na: y", "a is named twice"),
        ("a: {model: x, model: y}", "a has a key twice; write NAME: MODEL or NAME: {model: MODEL"),
        ("a: {model: x, weight: 0.1}", "a: weight and shadow are shares of the requests of another model: name it in"),
        ("a: x\nb: {model: x, of: c}", "b: of is 'c', which is not one of the models without of: a"),
        ("a: x\nb: {model: x, of: b}", "b: of is 'b', which is not one of the models without of: a"),
        (
            "a: x\nb: {model: x, of: a, weight: 0.6}\nc: {model: x, of: a, shadow: 0.6}",
            "b: the shares of the requests for a are 1.2 together: at most 1",
        ),
        ("a b: x", "'a b' is no name that fits into a path; write NAME: MODEL or NAME: {model: MODEL"),
        ("a: x\na/embed: y", "a/embed begins with a/, so paths of a would lead to it: choose another name; write"),
        ("a=x\n", " names no model; write NAME: MODEL or NAME: {model: MODEL"),
        ("a: {x", " is neither NAME=MODEL nor a YAML file: "),
    ],
)
def test_a_wrong_file_of_models_stops_the_start(tmp_path: Path, content: str, fault: str) -> None:
    (file := tmp_path / "models.yaml").write_text(content)
    with pytest.raises(SettingsError) as raised:
        Settings.from_environment({"BERT_MODELS": str(file)})
    assert str(raised.value).startswith(f"BERT_MODELS: {file}")
    assert fault in str(raised.value)
