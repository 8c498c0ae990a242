"""Vectors of tokens, MaxSim and weights of words are those of ColBERT's, PyLate's and FlagEmbedding's own code."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.engine.runner import ModelRunner
from packbert.service.errors import Invalid, NoSuchHead, TooLarge
from packbert.service.tasks import max_sim
from packbert.service.tasks.base import Tasks
from packbert.service.tasks.embed import embed_texts
from packbert.service.tasks.inputs import EmbedRequest, RerankFields, TruncationFields
from packbert.service.tasks.pairs import rerank, score_pairs
from packbert.service.tasks.sparse import EmbedSparseRequest, embed_sparse
from packbert.service.tasks.vectors import embed_any
from packbert.service.tokenization.encoding import EncodeOptions
from packbert.service.tokenization.tokenizer import Tokenizer
from tests import multi_vectors
from tests.e2e.test_neighbours import equal
from tests.export.goldens import Artifact
from tests.service.in_process import ask_engine

TOLERANCE = {"fp32": 1e-5, "int8": 0.3}  # int8: as for single channels of these small models
CASES = [(name, precision) for name in multi_vectors.NAMES for precision in TOLERANCE]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    found: dict[tuple[str, str], Path] = {}

    def exported(name: str, precision: str) -> Path:
        if (name, precision) not in found:
            folder = tmp_path_factory.mktemp(name)
            source = multi_vectors.checkpoint(name, folder / "checkpoint")
            export(source, folder / "artifact", precision=precision)
            found[name, precision] = folder / "artifact"
        return found[name, precision]

    return exported


def run(artifact: Path, question: Callable[[Tasks], Any]) -> Any:
    return ask_engine(artifact, question, truncate=True, max_wait_seconds=1000.0)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_vectors_of_queries_and_documents_are_the_authors(
    name: str, precision: str, artifact: Callable[[str, str], Path]
) -> None:
    found = multi_vectors.answers(name)

    async def question(tasks: Tasks) -> Any:
        return [
            (
                await embed_any(
                    tasks,
                    EmbedRequest(inputs=[one["text"] for one in found[side]], pooling="multi", prompt_name=prompt),
                )
            ).value
            for side, prompt in (("queries", "query"), ("documents", None))
        ]

    for side, answers in zip(("queries", "documents"), run(artifact(name, precision), question), strict=True):
        for got, one in zip(answers, found[side], strict=True):
            want = np.array(one["vectors"])
            assert got.shape == want.shape
            assert np.abs(got - want).max() <= TOLERANCE[precision]
            np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_rerank_scores_documents_by_max_sim_with_the_same_bits_alone_and_in_company(
    name: str, precision: str, artifact: Callable[[str, str], Path]
) -> None:
    found = multi_vectors.answers(name)
    documents, queries = ([one["text"] for one in found[side]] for side in ("documents", "queries"))

    async def question(tasks: Tasks) -> Any:
        whole, alone = [], []
        for query in queries:
            fields = RerankFields(query=query)
            whole.append((await rerank(tasks, fields, documents)).value)
            alone.append([(await rerank(tasks, fields, [one])).value[0] for one in documents])
        pairs = await score_pairs(tasks, queries, documents[:4], TruncationFields(), raw=False)
        return np.array(whole), np.array(alone), pairs.value

    whole, alone, pairs = run(artifact(name, precision), question)
    assert np.array_equal(whole, alone)
    assert np.array_equal(pairs, whole[np.arange(4), np.arange(4)])
    longest = max(len(one["vectors"]) for one in found["queries"])
    assert np.abs(whole - np.array(found["scores"])).max() <= TOLERANCE[precision] * (
        1 if name == "bge-m3" else longest
    )


@pytest.mark.parametrize("precision", TOLERANCE)
def test_weights_of_words_are_those_of_bge_m3(precision: str, artifact: Callable[[str, str], Path]) -> None:
    cases = multi_vectors.answers("bge-m3")["sparse"]
    request = EmbedSparseRequest(inputs=[one["text"] for one in cases])
    result = run(artifact("bge-m3", precision), lambda tasks: embed_sparse(tasks, request))
    for got, one in zip(result.value, cases, strict=True):
        want = {int(index): weight for index, weight in one["weights"].items()}
        weights = {weight["index"]: weight["value"] for weight in got}
        assert list(weights) == sorted(weights)
        differences = [abs(weights.get(index, 0.0) - want.get(index, 0.0)) for index in {*weights, *want}]
        assert max(differences, default=0.0) <= (1e-5 if precision == "fp32" else 0.5)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", ["stanford", "pylate", "bge-m3"])
def test_a_query_that_is_filled_up_has_the_same_bits_alone_and_beside_other_texts(
    name: str, precision: str, artifact: Callable[[str, str], Path]
) -> None:
    opened = open_artifact(artifact(name, precision))
    sides, manifest, found = opened.manifest.sides, opened.manifest, multi_vectors.answers(name)
    tokenizer, runner = Tokenizer(opened, 10_000), ModelRunner(opened, threads=2)
    tokenizer.open()
    runner.open()
    outputs = frozenset({"multi", "tokens"} | ({"token_weights"} if name == "bge-m3" else set()))
    work = [
        one
        for side, key in (("query", "queries"), ("document", "documents"))
        for one in tokenizer.encode_sync(
            [answer["text"] for answer in found[key]], EncodeOptions(outputs=outputs, side=sides[side]), "right"
        )
    ]
    assert any(one.unattended for one in work) == (name != "bge-m3")
    work += [replace(one, ids=one.ids[::-1].copy(), unattended=0) for one in work]
    alone = [runner.run_sync([one])[0][0] for one in work]
    for batch in (work, work[::-1], work[3:7]):
        rows, _ = runner.run_sync(batch)
        assert all(equal(row, alone[work.index(one)]) for one, row in zip(batch, rows, strict=True))
    assert max(map(len, work)) <= manifest.max_tokens
    tokenizer.close()
    runner.close()


def test_vectors_of_many_documents_are_scored_a_few_at_a_time(
    artifact: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"the dog walked to river {i % 7} and {'the sun ' * (i % 20)}" for i in range(300)]

    async def question(tasks: Tasks) -> Any:
        tasks = tasks.allowing(len(texts))
        return await rerank(tasks, RerankFields(query="the sun"), texts)

    at_once = run(artifact("stanford", "fp32"), question)
    monkeypatch.setattr(max_sim, "MAX_HELD", 12 * 2_000)
    few = run(artifact("stanford", "fp32"), question)
    assert np.array_equal(at_once.value, few.value)
    assert few.tokens == at_once.tokens == sum(map(len, few.sequences))

    async def many_queries(tasks: Tasks) -> Any:
        tasks = tasks.allowing(len(texts))
        await score_pairs(tasks, texts, texts, TruncationFields(), raw=False)

    with pytest.raises(TooLarge, match="the queries have more than 2000 tokens in all: split the request"):
        run(artifact("stanford", "fp32"), many_queries)


def test_an_error_of_a_rerank_names_the_document_or_the_query(artifact: Callable[[str, str], Path]) -> None:
    async def ask(tasks: Tasks, query: str, documents: list[str]) -> None:
        await rerank(tasks, RerankFields(query=query, truncate=False), documents)

    with pytest.raises(Invalid) as caught:
        run(artifact("stanford", "fp32"), lambda tasks: ask(tasks, "the cat " * 20, ["a"]))
    assert caught.value.message.startswith("query: input has 42 tokens; this model takes at most 23: shorten it")
    assert caught.value.index is None
    for wrong in ("the cat " * 40, ""):
        with pytest.raises(Invalid, match="input has") as caught:
            run(artifact("stanford", "fp32"), partial(ask, query="a", documents=["a", wrong]))
        assert caught.value.index == 1


def test_a_model_without_vectors_of_tokens_says_so(exported: Callable[..., Artifact]) -> None:
    request = EmbedRequest(inputs="a", pooling="multi")
    with pytest.raises(NoSuchHead, match="this model has no multi head"):
        run(exported("bert").root, lambda tasks: embed_any(tasks, request))


def test_a_colbert_gives_its_vectors_of_documents_by_default_and_has_no_single_one(
    artifact: Callable[[str, str], Path],
) -> None:
    found = multi_vectors.answers("stanford")["documents"]

    async def question(tasks: Tasks) -> Any:
        request = EmbedRequest(inputs=[one["text"] for one in found], dimensions=6)
        with pytest.raises(Invalid, match="pooling multi gives a vector for each token: /embed has it"):
            await embed_texts(tasks, ["a"], request)
        return await embed_any(tasks, request)

    for got, one in zip(run(artifact("stanford", "fp32"), question).value, found, strict=True):
        want = np.array(one["vectors"])[:, :6]
        np.testing.assert_allclose(got, want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-5)
