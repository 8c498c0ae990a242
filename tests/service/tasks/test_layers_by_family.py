"""/embed with `layers`, `layer_pooling` and `words` for every family, against the hidden states of transformers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packbert.service.errors import Invalid, ServiceError, TooLarge
from packbert.service.tasks.embed import unit_length
from packbert.service.tasks.flow import Tasks, answer_request
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.tasks.vectors import embed_any
from tests.export.goldens import Artifact
from tests.golden.makers.texts import TEXTS
from tests.paths import GOLDEN
from tests.service.tasks.test_tokens_by_family import NAMES, SMALLEST_COSINE, run

TOLERANCE = 1e-4
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
    async def question(tasks: Tasks) -> list[Any]:
        asked = [
            EmbedRequest.model_validate({"inputs": [text for text, *_ in golden("bert")]} | one) for one in requests
        ]
        return [(await answer_request(tasks, embed_any, one)).value for one in asked]

    answers: list[Any] = run(artifact.root, question)
    return answers


def assert_equal(got: Any, want: NDArray[Any], precision: str) -> None:
    assert got.shape == want.shape
    if precision == "fp32":
        assert np.abs(got - want).max() <= TOLERANCE
    else:
        cosines = (unit_length(got) * unit_length(want)).sum(axis=-1)
        assert cosines.min() >= SMALLEST_COSINE[precision]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_states_of_layers_are_those_of_transformers(
    name: str, precision: str, exported: Callable[..., Artifact]
) -> None:
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


def test_dimensions_and_normalize_apply_to_the_joined_vector_and_words_have_their_pieces(
    exported: Callable[..., Artifact],
) -> None:
    cut, plain, shown = embed(
        exported("bert"),
        [
            {"layers": [-1, -2], "pooling": "cls", "layer_pooling": "concat", "dimensions": 40, "normalize": True},
            {"layers": [-1, -2], "pooling": "cls", "layer_pooling": "concat"},
            {"inputs": "Unaffable cats", "pooling": "none", "words": True, "pieces": True, "dimensions": 3},
        ],
    )
    assert np.abs(cut - unit_length(plain[:, :40])).max() <= 1e-6
    assert cut.shape == (6, 40)
    ((first, second), vectors) = (shown[0]["words"], shown[0]["vectors"])
    assert (first["text"], first["start"], first["stop"]) == ("Unaffable", 0, 9)
    assert first["pieces"] == ["un", "##aff", "##able"]
    assert (second["text"], second["start"], second["stop"]) == ("cats", 10, 14)
    assert vectors.shape == (2, 3)


def test_words_of_a_text_that_is_cut_are_those_of_its_tokens(exported: Callable[..., Artifact]) -> None:
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
        ({"layers": [9]}, Invalid, "layers has 9; this model has 0 .the embeddings. to 3, or -4 to -1"),
        ({"layers": [3, -1]}, Invalid, "layers has layer 3 twice"),
        ({"layers": [1], "layer_pooling": [0.5, 0.5]}, Invalid, "layer_pooling has 2 weights for 1 layers"),
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
    body: dict[str, Any], error: type[ServiceError], message: str, exported: Callable[..., Artifact]
) -> None:
    with pytest.raises(error, match=message):
        embed(exported("bert"), [body])
