"""/tokenize, /decode, vectors of tokens, of layers and of words, and sparse vectors of every family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packbert.service.errors import Invalid, ServiceError, TooLarge
from packbert.service.tasks.embed import unit_length
from packbert.service.tasks.flow import Read
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.tasks.sparse import EmbedSparseRequest, embed_sparse
from packbert.service.tasks.tokens import DecodeRequest, TokenizeRequest, decode, tokenize
from packbert.service.tasks.vectors import EmbedAllRequest, embed_all, embed_any, embed_tokens
from tests.checkpoints import names_in
from tests.export.goldens import Artifact, Exported, answers
from tests.golden.makers.texts import TEXTS
from tests.paths import GOLDEN
from tests.service.in_process import values_at_once

NAMES = sorted(file.stem for file in (GOLDEN / "tokens").glob("*.json"))
TOLERANCE = {"fp32": 1e-4, "int8": 0.35}  # int8: as for single channels of these small models
each_family = pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in NAMES), ("bert", "int8"), ("roberta", "int8")]
)
SMALLEST_COSINE = {"fp32": 0.999999, "int8": 0.99}


def run(artifact: Path, *asked: tuple[Read, Any]) -> list[Any]:
    return values_at_once(artifact, *asked, truncate=True, max_wait_seconds=1000.0)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_texts_are_those_of_transformers(name: str, exported: Exported) -> None:
    cases = answers(f"tokens/{name}")["tokens"]
    texts = [one["text"] if one["text_pair"] is None else [one["text"], one["text_pair"]] for one in cases]
    ids = [one["ids"] for one in cases]

    shown, counts, plain, with_special = run(
        exported(name).root,
        (tokenize, TokenizeRequest(inputs=texts, details=True)),
        (tokenize, TokenizeRequest(inputs=texts, count=True)),
        *((decode, DecodeRequest(ids=ids, skip_special_tokens=skip)) for skip in (True, False)),
    )
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


@each_family
def test_vectors_of_tokens_and_sparse_vectors_are_those_of_transformers(
    name: str, precision: str, exported: Exported
) -> None:
    found, artifact = answers(f"tokens/{name}"), exported(name, precision)
    texts = [one["text"] for one in found["vectors"]]
    sparse_texts = [one["text"] for one in found["sparse"]]

    vectors, with_pieces, sparse = run(
        artifact.root,
        (embed_all, EmbedAllRequest(inputs=texts)),
        (embed_tokens, EmbedRequest(inputs=texts, pooling="none", pieces=True)),
        (embed_sparse, EmbedSparseRequest(inputs=sparse_texts, force=True)),
    )
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
    for weights, one in zip(sparse, found["sparse"], strict=True):
        dense = np.zeros(artifact.manifest.sizes["vocabulary"])
        dense[one["ids"]] = one["weights"]
        places = [weight["index"] for weight in weights]
        assert places == sorted(set(places))
        dense[places] -= [weight["value"] for weight in weights]
        assert np.abs(dense).max() <= TOLERANCE[precision]


@pytest.mark.parametrize("name", names_in("splade"))
def test_a_sparse_encoder_of_sentence_transformers_gives_its_vectors_unforced(name: str, exported: Exported) -> None:
    cases, artifact = answers(name), exported(name)
    assert "sparse" in artifact.manifest.heads
    assert artifact.manifest.verification["sparse_max_abs_error"] < 1e-5
    request = EmbedSparseRequest(inputs=[one["text"] for one in cases])
    (found,) = run(artifact.root, (embed_sparse, request))
    for weights, one in zip(found, cases, strict=True):
        assert [weight["index"] for weight in weights] == one["ids"]
        np.testing.assert_allclose([weight["value"] for weight in weights], one["weights"], atol=1e-4)


WEIGHTS = [0.5, -1.0, 2.0]
JOINED: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "concat": lambda states: np.concatenate(list(states), axis=-1),
    "mean": lambda states: states.mean(axis=0),
    "sum": lambda states: states.sum(axis=0),
}


def golden(name: str) -> list[tuple[str, NDArray[np.float32], list[list[int]]]]:
    """Texts, their states [layers + 1, tokens, hidden], and the tokens of each word."""
    content, found = np.load(GOLDEN / "layers" / f"{name}.npz"), []
    for i in range(len(content.files) // 2):
        words = content[f"{i}.words"]
        groups = [np.flatnonzero(words == word).tolist() for word in range(int(words.max()) + 1)]
        found.append((TEXTS[i], content[f"{i}.states"], [group for group in groups if group]))
    return found


def embed(artifact: Artifact, requests: list[dict[str, Any]]) -> list[Any]:
    texts = [text for text, *_ in golden("bert")]
    return run(artifact.root, *((embed_any, EmbedRequest.model_validate({"inputs": texts} | one)) for one in requests))


def assert_equal(got: Any, want: NDArray[Any], precision: str) -> None:
    assert got.shape == want.shape
    if precision == "fp32":
        assert np.abs(got - want).max() <= TOLERANCE[precision]
    else:
        cosines = (unit_length(got) * unit_length(want)).sum(axis=-1)
        assert cosines.min() >= SMALLEST_COSINE[precision]


@each_family
def test_states_of_layers_are_those_of_transformers(name: str, precision: str, exported: Exported) -> None:
    cases = golden(name)
    count = len(cases[0][1])
    layers = [-1, 0, count - 2]
    requests: list[dict[str, Any]] = [
        {"layers": list(range(count)), "pooling": "cls"},
        {"layers": layers, "pooling": "mean"},
        {"layers": layers, "pooling": "none"},
        {"layers": layers, "pooling": "none", "words": True},
        *({"layers": layers, "pooling": "none", "layer_pooling": how} for how in JOINED),
        {"layers": layers, "pooling": "cls", "layer_pooling": WEIGHTS},
    ]
    cls, mean, tokens, words, *joined, weighted = embed(exported(name, precision), requests)
    for i, (_, states, own) in enumerate(cases):
        asked = states[layers]
        assert_equal(cls[i], states[:, 0], precision)
        assert_equal(mean[i], asked.mean(axis=1), precision)
        assert_equal(tokens[i], asked, precision)
        assert_equal(words[i], np.stack([asked[:, word].mean(axis=1) for word in own], axis=1), precision)
        for how, got in zip(JOINED, joined, strict=True):
            assert_equal(got[i], JOINED[how](asked), precision)
        assert_equal(weighted[i], np.tensordot(WEIGHTS, asked[:, 0], axes=1), precision)


def test_dimensions_and_normalize_apply_to_the_joined_vector(exported: Exported) -> None:
    joined = {"layers": [-1, -2], "pooling": "cls", "layer_pooling": "concat"}
    cut, plain = embed(exported("bert"), [joined | {"dimensions": 40, "normalize": True}, joined])
    assert np.abs(cut - unit_length(plain[:, :40])).max() <= 1e-6
    assert cut.shape == (6, 40)


def test_words_of_a_text_that_is_cut_are_those_of_its_tokens(exported: Exported) -> None:
    text = " ".join(["cat", "unaffable", "dog"] * 40)
    for direction in ("right", "left"):
        body = {"inputs": text, "pooling": "none", "words": True, "pieces": True}
        (shown,) = embed(exported("bert"), [body | {"truncate": True, "truncation_direction": direction}])[0]
        spelled = [word["text"] for word in shown["words"]]
        assert len(shown["vectors"]) == len(spelled) < 120
        kept = " ".join(spelled[:-1] if direction == "right" else spelled[1:])  # the word at the cut may lack pieces
        assert text.startswith(kept) if direction == "right" else text.endswith(kept)
        pieces = {tuple(word["pieces"]) for word in shown["words"][1:-1]}
        assert pieces == {("cat",), ("dog",), ("un", "##aff", "##able")}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ({"layers": [1], "layer_pooling": [1e300]}, Invalid, "has the weight 1e.300: send numbers from -1,000,000"),
        ({"layers": [1], "layer_pooling": [float("nan")]}, Invalid, "layer_pooling has the weight nan"),
        ({"layers": [0, 1], "dimensions": 65}, Invalid, "dimensions is 65; this model has 32"),
        (
            {"layers": [0, 1, 2, 3], "pooling": "none", "inputs": ["the cat sat on the mat " * 20] * 400},
            TooLarge,
            "for each of 3[0-9]{4} tokens make a response of .* at most 4000000 are allowed, 31250 tokens",
        ),
    ],
)
def test_what_has_no_answer_is_an_error_that_says_what_to_send(
    body: dict[str, Any], error: type[ServiceError], message: str, exported: Exported
) -> None:
    with pytest.raises(error, match=message):
        embed(exported("bert"), [body])
