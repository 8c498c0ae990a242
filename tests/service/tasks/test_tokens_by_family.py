"""/tokenize, /decode, vectors of tokens and sparse vectors of every family, against transformers and its relatives."""

import asyncio
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.model_export.export import export
from packbert.service.errors import NoSuchHead
from packbert.service.tasks.flow import Read, Tasks, answer_request
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.tasks.sparse import EmbedSparseRequest, embed_sparse
from packbert.service.tasks.tokens import DecodeRequest, TokenizeRequest, decode, tokenize
from packbert.service.tasks.vectors import EmbedAllRequest, embed_all, embed_tokens
from tests.export.goldens import Artifact
from tests.paths import GOLDEN
from tests.service.in_process import ask_engine

NAMES = sorted(file.stem for file in (GOLDEN / "tokens").glob("*.json"))
TOLERANCE = {"fp32": 1e-4, "int8": 0.35}  # int8: as for single channels of these small models
SMALLEST_COSINE = {"fp32": 0.999999, "int8": 0.99}


@cache
def answers(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / "tokens" / f"{name}.json").read_text("utf-8"))
    return content


def run(artifact: Path, question: Callable[[Tasks], Any]) -> Any:
    """The answer to a question to an engine with the artifact."""
    return ask_engine(artifact, question, truncate=True, max_wait_seconds=1000.0)


def dense(weights: list[dict[str, Any]], size: int) -> Any:
    row = np.zeros(size)
    for one in weights:
        row[one["index"]] = one["value"]
    return row


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_texts_are_those_of_transformers(name: str, exported: Callable[..., Artifact]) -> None:
    cases = answers(name)["tokens"]
    texts = [one["text"] if one["text_pair"] is None else [one["text"], one["text_pair"]] for one in cases]
    ids = [one["ids"] for one in cases]

    async def question(tasks: Tasks) -> Any:
        asked: list[tuple[Read, Any]] = [
            (tokenize, TokenizeRequest(inputs=texts, details=True)),
            (tokenize, TokenizeRequest(inputs=texts, count=True)),
        ]
        asked += [(decode, DecodeRequest(ids=ids, skip_special_tokens=skip)) for skip in (True, False)]
        return [(await answer_request(tasks, read, one)).value for read, one in asked]

    shown, counts, plain, with_special = run(exported(name).root, question)
    unknown = exported(name).manifest.special_tokens["unk"]
    assert counts == [len(one) for one in ids]
    assert plain == [one["decoded"] for one in cases]
    assert with_special == [one["decoded_special"] for one in cases]
    for tokens, one in zip(shown, cases, strict=True):
        sides = (one["text"], one["text_pair"])
        assert [token["id"] for token in tokens] == one["ids"]
        assert [token["piece"] for token in tokens] == one["pieces"]
        assert [int(token["special"]) for token in tokens] == one["special"]
        assert [token["word"] for token in tokens] == one["words"]
        assert [token["side"] for token in tokens] == one["sides"]
        assert [token["segment"] for token in tokens] == one["types"]
        assert [token["position"] for token in tokens] == list(range(len(tokens)))
        assert [token["unknown"] for token in tokens] == [token_id == unknown for token_id in one["ids"]]
        for token, (start, stop) in zip(tokens, one["spans"], strict=True):
            if token["special"]:
                assert (token["start"], token["stop"], token["text"]) == (None, None, token["piece"])
            else:
                assert (token["start"], token["stop"]) == (start, stop)
                assert token["text"] == (sides[token["side"]] or "")[start:stop]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_tokens_and_sparse_vectors_are_those_of_transformers(
    name: str, precision: str, exported: Callable[..., Artifact]
) -> None:
    found, artifact = answers(name), exported(name, precision)
    texts = [one["text"] for one in found["vectors"]]
    sparse_texts = [one["text"] for one in found["sparse"]]

    async def question(tasks: Tasks) -> Any:
        asked: list[tuple[Read, Any]] = [
            (embed_all, EmbedAllRequest(inputs=texts)),
            (embed_tokens, EmbedRequest(inputs=texts, pooling="none", pieces=True)),
            (embed_sparse, EmbedSparseRequest(inputs=sparse_texts, force=True)),
        ]
        return await asyncio.gather(*(answer_request(tasks, read, one) for read, one in asked))

    vectors, with_pieces, sparse = (result.value for result in run(artifact.root, question))
    for got, one, pieces in zip(vectors, found["vectors"], with_pieces, strict=True):
        want = np.array(one["vectors"])
        assert np.abs(got - want).max() <= TOLERANCE[precision]
        cosines = (got * want).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
        assert cosines.min() >= SMALLEST_COSINE[precision]
        assert np.array_equal(pieces["vectors"], got)
        case = next(case for case in found["tokens"] if case["text"] == one["text"] and case["text_pair"] is None)
        assert [piece["id"] for piece in pieces["pieces"]] == case["ids"]
        assert [piece["text"] for piece in pieces["pieces"]] == case["pieces"]
        spans = [(piece["start"], piece["stop"]) for piece in pieces["pieces"] if not piece["special"]]
        shown = [tuple(span) for span, special in zip(case["spans"], case["special"], strict=True) if not special]
        assert spans == shown
    size = artifact.manifest.sizes["vocabulary"]
    for weights, one in zip(sparse, found["sparse"], strict=True):
        want = np.zeros(size)
        want[one["ids"]] = one["weights"]
        assert np.abs(dense(weights, size) - want).max() <= TOLERANCE[precision]
        assert [weight["index"] for weight in weights] == sorted(weight["index"] for weight in weights)


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_a_sparse_encoder_of_sentence_transformers_gives_its_vectors_unforced(activation: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    for source in (GOLDEN / "bert", GOLDEN / "splade" / activation):
        for file in (file for file in source.rglob("*") if file.is_file()):
            target = checkpoint / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    cases = json.loads((checkpoint / "answers.json").read_text("utf-8"))
    manifest = export(checkpoint, tmp_path / "artifact")
    assert "sparse" in manifest.heads
    assert manifest.verification["sparse_max_abs_error"] < 1e-5
    request = EmbedSparseRequest(inputs=[one["text"] for one in cases])
    result = run(tmp_path / "artifact", lambda tasks: answer_request(tasks, embed_sparse, request))
    for weights, one in zip(result.value, cases, strict=True):
        assert [weight["index"] for weight in weights] == one["ids"]
        np.testing.assert_allclose([weight["value"] for weight in weights], one["weights"], atol=1e-4)


def test_a_model_without_masked_language_head_says_that_it_has_no_sparse_vectors(
    exported: Callable[..., Artifact],
) -> None:
    request = EmbedSparseRequest(inputs="a", force=True)
    with pytest.raises(NoSuchHead, match="this model has no fill_mask head: the checkpoint has no weights of a masked"):
        run(exported("bert-labels").root, lambda tasks: answer_request(tasks, embed_sparse, request))
