"""/attention over HTTP: pieces, matrices and rollout of every family, choices of layers and heads, limits."""

import numpy as np
import pytest

from tests.export.goldens import Exported
from tests.paths import GOLDEN
from tests.service.in_process import InProcessClient, ask, serve_in_process

FAMILIES = sorted(file.stem for file in (GOLDEN / "attention").glob("*.npz"))
FIRST, SECOND = "the dog ran home", "it was very tired"  # the pair of tests/golden/makers/make_layers.py
PAIR = {"text": FIRST, "text_pair": SECOND}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_pair_of_every_family_gets_the_matrices_of_transformers(name: str, exported: Exported) -> None:
    stored = np.load(GOLDEN / "attention" / f"{name}.npz")
    last = max(int(key.split(".")[0]) for key in stored)
    want, types = stored[f"{last}.attention"], stored[f"{last}.types"].tolist()
    with serve_in_process(exported(name).root) as client:
        found, flow = ask(client, "/attention", inputs=PAIR), ask(client, "/attention", inputs=PAIR, reduce="rollout")
    np.testing.assert_allclose(np.array(found["attention"]), want, atol=1e-5)
    np.testing.assert_allclose(np.array(flow["attention"]), stored[f"{last}.rollout"], atol=1e-5)
    assert found["layers"] == flow["layers"] == list(range(len(want)))
    assert found["heads"] == flow["heads"] == list(range(want.shape[1]))
    pieces = found["pieces"]
    assert [piece["id"] for piece in pieces] == stored[f"{last}.ids"].tolist()
    assert [piece["segment"] for piece in pieces] == types
    for side, text in enumerate((FIRST, SECOND)):
        own = [piece for piece in pieces if piece["side"] == side]
        assert "".join(text[piece["start"] : piece["stop"]] for piece in own if piece["text"] != "▁").replace(
            " ", ""
        ) == text.replace(" ", "")
        assert not any(piece["special"] for piece in own)
    ends = [piece for piece in pieces if piece["side"] is None]
    assert all(piece["special"] and piece["start"] is piece["stop"] is None for piece in ends)
    assert len(ends) in (3, 4)


@pytest.mark.parametrize("heads", [None, [1], [2, 0]])
def test_mean_and_rollout_are_over_the_heads_asked_for(encoder: InProcessClient, heads: list[int] | None) -> None:
    whole = np.array(ask(encoder, "/attention", inputs=FIRST, heads=heads)["attention"])
    mean = ask(encoder, "/attention", inputs=FIRST, heads=heads, layers=[1], reduce="mean")
    assert (mean["layers"], mean["heads"]) == ([1], heads or [0, 1, 2, 3])
    np.testing.assert_allclose(np.array(mean["attention"]), whole[[1]].mean(axis=1), atol=1e-6)
    flow = ask(encoder, "/attention", inputs=FIRST, heads=heads, layers=[1], reduce="rollout")
    assert flow["layers"] == [0, 1]
    half = [0.5 * one + 0.5 * np.eye(len(one)) for one in whole.mean(axis=1)]
    np.testing.assert_allclose(np.array(flow["attention"]), half[1] @ half[0], atol=1e-6)
