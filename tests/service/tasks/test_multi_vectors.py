"""Vectors of tokens, MaxSim and weights of words are those of ColBERT's, PyLate's and FlagEmbedding's own code."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid, NoSuchHead, TooLarge
from packbert.service.tasks import max_sim
from packbert.service.tasks.embed import embed_texts
from packbert.service.tasks.flow import TaskResult, Tasks, answer_request
from packbert.service.tasks.inputs import EmbedRequest, RerankFields, TruncationFields
from packbert.service.tasks.pairs import rerank, score_pairs
from packbert.service.tasks.sparse import EmbedSparseRequest, embed_sparse
from packbert.service.tasks.vectors import embed_any
from packbert.service.tokenization.encoding import EncodedText, EncodeOptions
from tests.checkpoints import names_in
from tests.e2e.test_neighbours import equal
from tests.export.goldens import Exported, answers
from tests.service.engine.runners import open_runner
from tests.service.in_process import ask_engine
from tests.service.tasks import fake_vectors
from tests.service.tokenization.reading import encode, open_tokenizer

TOLERANCE = {"fp32": 1e-5, "int8": 0.3}  # int8: as for single channels of these small models
CASES = [(name, precision) for name in names_in("multi-vectors") for precision in TOLERANCE]


@pytest.fixture
def stanford(exported: Exported) -> Path:
    return exported("multi-vectors/stanford").root


def run(artifact: Path, question: Callable[[Tasks], Any]) -> Any:
    return ask_engine(artifact, question, truncate=True, max_wait_seconds=1000.0)


def rank(tasks: Tasks, query: str, documents: list[str], **fields: Any) -> Coroutine[Any, Any, TaskResult]:
    return answer_request(tasks, partial(rerank, texts=documents), RerankFields(query=query, **fields))


def score(tasks: Tasks, queries: list[str], documents: list[str]) -> Coroutine[Any, Any, TaskResult]:
    return answer_request(
        tasks, lambda tasks, fields: score_pairs(tasks, queries, documents, fields, raw=False), TruncationFields()
    )


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_vectors_of_queries_and_documents_are_the_authors(name: str, precision: str, exported: Exported) -> None:
    found = answers(name)

    async def question(tasks: Tasks) -> Any:
        asked = [
            EmbedRequest(inputs=[one["text"] for one in found[side]], pooling="multi", prompt_name=prompt)
            for side, prompt in (("queries", "query"), ("documents", None))
        ]
        return [(await answer_request(tasks, embed_any, one)).value for one in asked]

    answered = run(exported(name, precision).root, question)
    for side, vectors in zip(("queries", "documents"), answered, strict=True):
        for got, one in zip(vectors, found[side], strict=True):
            want = np.array(one["vectors"])
            assert got.shape == want.shape
            assert np.abs(got - want).max() <= TOLERANCE[precision]
            np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_rerank_scores_by_max_sim_with_the_same_bits_in_company(name: str, precision: str, exported: Exported) -> None:
    found = answers(name)
    documents, queries = ([one["text"] for one in found[side]] for side in ("documents", "queries"))

    async def question(tasks: Tasks) -> Any:
        whole, alone = [], []
        for query in queries:
            whole.append((await rank(tasks, query, documents)).value)
            alone.append([(await rank(tasks, query, [one])).value[0] for one in documents])
        pairs = await score(tasks, queries, documents[:4])
        return np.array(whole), np.array(alone), pairs.value

    whole, alone, pairs = run(exported(name, precision).root, question)
    assert np.array_equal(whole, alone)
    assert np.array_equal(pairs, whole[np.arange(4), np.arange(4)])
    longest = max(len(one["vectors"]) for one in found["queries"])
    assert np.abs(whole - np.array(found["scores"])).max() <= TOLERANCE[precision] * (
        1 if name.endswith("bge-m3") else longest
    )


@pytest.mark.parametrize("precision", TOLERANCE)
def test_weights_of_words_are_those_of_bge_m3(precision: str, exported: Exported) -> None:
    cases = answers("multi-vectors/bge-m3")["sparse"]
    request = EmbedSparseRequest(inputs=[one["text"] for one in cases])
    artifact = exported("multi-vectors/bge-m3", precision)
    result = run(artifact.root, lambda tasks: answer_request(tasks, embed_sparse, request))
    for got, one in zip(result.value, cases, strict=True):
        want = {int(index): weight for index, weight in one["weights"].items()}
        weights = {weight["index"]: weight["value"] for weight in got}
        assert list(weights) == sorted(weights)
        differences = [abs(weights.get(index, 0.0) - want.get(index, 0.0)) for index in {*weights, *want}]
        assert max(differences, default=0.0) <= (1e-5 if precision == "fp32" else 0.5)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", ["stanford", "pylate", "bge-m3"])
def test_a_query_that_is_filled_up_has_the_same_bits_in_company(name: str, precision: str, exported: Exported) -> None:
    opened = open_artifact(exported(f"multi-vectors/{name}", precision).root)
    sides, manifest, found = opened.manifest.sides, opened.manifest, answers(f"multi-vectors/{name}")
    outputs = frozenset({"multi", "tokens"} | ({"token_weights"} if name == "bge-m3" else set()))
    work = list[EncodedText]()
    with open_tokenizer(opened) as tokenizer, open_runner(opened) as runner:
        for side, key in (("query", "queries"), ("document", "documents")):
            options = EncodeOptions(outputs=outputs, side=sides[side])
            work += encode(tokenizer, [answer["text"] for answer in found[key]], options, "right")
        assert any(one.unattended for one in work) == (name != "bge-m3")
        work += [replace(one, ids=one.ids[::-1].copy(), unattended=0) for one in work]
        alone = [runner.run_sync([one])[0][0] for one in work]
        for batch in (work, work[::-1], work[3:7]):
            rows, _ = runner.run_sync(batch)
            assert all(equal(row, alone[work.index(one)]) for one, row in zip(batch, rows, strict=True))
    assert max(map(len, work)) <= manifest.max_tokens


def test_vectors_of_many_documents_are_scored_a_few_at_a_time(stanford: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"the dog walked to river {i % 7} and {'the sun ' * (i % 20)}" for i in range(300)]

    def at_most(count: int, tasks: Tasks) -> Tasks:
        return replace(tasks, settings=tasks.settings.model_copy(update={"max_inputs": count}))

    async def question(tasks: Tasks) -> Any:
        return await rank(at_most(len(texts), tasks), "the sun", texts)

    at_once = run(stanford, question)
    monkeypatch.setattr(max_sim, "MAX_HELD", 12 * 2_000)
    few = run(stanford, question)
    assert np.array_equal(at_once.value, few.value)
    assert few.tokens == at_once.tokens == sum(map(len, few.sequences))
    with pytest.raises(TooLarge, match="the queries have more than 2000 tokens in all: split the request"):
        run(stanford, lambda tasks: score(at_most(len(texts), tasks), texts, texts))


def test_rows_of_documents_are_let_go_of_as_they_are_scored(stanford: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_sim, "MAX_HELD", 12 * 2_000)
    alive, most = 0, 0  # tokens whose vectors are in memory

    def make_row(tokens: Tokens) -> Row:
        nonlocal alive, most
        vectors = np.ones((len(tokens), 12), np.float32)
        alive += len(tokens)
        most = max(most, alive)
        weakref.finalize(vectors, let_go, len(tokens))
        return {"multi": vectors}

    def let_go(count: int) -> None:
        nonlocal alive
        alive -= count

    async def story(tasks: Tasks, *_: Any) -> None:
        result = await rank(tasks, "the sun", ["the dog walked to the river"] * 2000)
        assert (len(result.value), result.tokens > 15_000, result.rows) == (2000, True, [])

    monkeypatch.setattr(fake_vectors, "make_row", make_row)
    with open_tokenizer(stanford) as tokenizer:
        asyncio.run(fake_vectors.play(tokenizer, story))
    assert 2000 < most < 4000, "what waits for its scores, and the chunks that run"
    assert alive == 0


def test_an_error_of_a_rerank_names_the_document_or_the_query(stanford: Path) -> None:
    def ask(tasks: Tasks, query: str, documents: list[str]) -> Any:
        return rank(tasks, query, documents, truncate=False)

    with pytest.raises(Invalid) as caught:
        run(stanford, lambda tasks: ask(tasks, "the cat " * 20, ["a"]))
    assert caught.value.message.startswith("query: input has 42 tokens; this model takes at most 23: shorten it")
    assert caught.value.index is None
    for wrong in ("the cat " * 40, ""):
        with pytest.raises(Invalid, match="input has") as caught:
            run(stanford, partial(ask, query="a", documents=["a", wrong]))
        assert caught.value.index == 1


def test_a_model_without_vectors_of_tokens_says_so(exported: Exported) -> None:
    request = EmbedRequest(inputs="a", pooling="multi")
    with pytest.raises(NoSuchHead, match="this model has no multi head"):
        run(exported("bert").root, lambda tasks: answer_request(tasks, embed_any, request))


def test_a_colbert_gives_vectors_of_documents_by_default_and_no_single_one(stanford: Path) -> None:
    found = answers("multi-vectors/stanford")["documents"]

    async def question(tasks: Tasks) -> Any:
        request = EmbedRequest(inputs=[one["text"] for one in found], dimensions=6)
        with pytest.raises(Invalid, match="pooling multi gives a vector for each token: /embed has it"):
            await embed_texts(tasks, ["a"], request)
        return await answer_request(tasks, embed_any, request)

    for got, one in zip(run(stanford, question).value, found, strict=True):
        want = np.array(one["vectors"])[:, :6]
        np.testing.assert_allclose(got, want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-5)
