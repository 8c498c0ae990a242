"""The graphs of attention and of hidden states: when they are opened, in company, and when their files change."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import LAST, Row, Tokens
from packbert.service.engine import memory
from packbert.service.engine.memory import mappings_of
from packbert.service.engine.runner import ModelRunner
from packbert.service.errors import InferenceFailed
from tests.export.goldens import Exported
from tests.service.engine.changed_files import CHANGES, change_file
from tests.service.engine.runners import open_runner

PLAIN = frozenset({"cls", "mean", "tokens", "top_logits", "log_sum_exp"})


def text(length: int, *outputs: str) -> Tokens:
    ids = (np.arange(length, dtype=np.int32) * 7 + length) % 150
    layers = (LAST, 0, 1) if any(name.startswith("layer") for name in outputs) else ()
    return Tokens(
        ids=ids, types=ids * 0, outputs=frozenset(outputs), masks=(1,) if "top_logits" in outputs else (), layers=layers
    )


def one(runner: ModelRunner, tokens: Tokens) -> Row:
    (row,), _ = runner.run_sync([tokens])
    assert row is not None
    return row


@pytest.fixture(params=["attention", "layers"])
def graph(request: pytest.FixtureRequest) -> str:
    """A graph beside that of the answers, opened for the first request that needs it."""
    name: str = request.param
    return name


def of_graph(name: str, layer: int = 0) -> Tokens:
    """A request that needs the graph."""
    return replace(text(9, "attention" if name == "attention" else "layer_tokens"), layers=(layer,))


def test_a_graph_is_opened_by_the_first_request_that_needs_it(bert_artifact: Path, graph: str) -> None:
    with open_runner(bert_artifact) as runner:
        further = getattr(runner, graph)
        one(runner, text(9, *PLAIN))
        if graph == "attention":
            one(runner, of_graph("layers"))
        assert further._session is None
        one(runner, of_graph(graph))
        first = further._session
        assert first is not None
        one(runner, of_graph(graph, layer=1))
        assert further._session is first


def test_weights_that_services_share_are_mapped_as_copies(exported: Exported, tmp_path: Path, graph: str) -> None:
    artifact = Path(shutil.copytree(exported("sample").root, tmp_path / "artifact"))  # small weights are not mapped
    weights, tokens = artifact / "cpu" / "model.onnx.data", of_graph(graph)
    (name,) = tokens.outputs
    with open_runner(artifact) as runner:
        getattr(runner, graph).shared = tmp_path / "packed"
        before = one(runner, tokens)[name]
        assert mappings_of(memory.shared_files(runner.artifact, tmp_path / "packed") / weights.name)
        assert not mappings_of(weights)
        weights.write_bytes(bytes(weights.stat().st_size))  # a change in place has no effect on copies
        assert np.array_equal(one(runner, tokens)[name], before)


@pytest.mark.parametrize("change", CHANGES)
def test_files_changed_since_the_start_are_an_error_and_no_answer(
    bert_artifact: Path, tmp_path: Path, graph: str, change: str
) -> None:
    artifact = Path(shutil.copytree(bert_artifact, tmp_path / "artifact"))
    weights, path = artifact / "cpu" / "model.onnx.data", artifact / "cpu" / f"{graph}.onnx"
    with open_runner(artifact) as runner:
        change_file(change, weights=weights, graph=path)
        with pytest.raises(InferenceFailed, match=r"files have changed since the service started.*restart it"):
            one(runner, of_graph(graph))
        assert one(runner, text(5, "cls"))["cls"].shape == (1, 32)


def test_probabilities_that_are_not_finite_fail_their_sequence_alone(bert_artifact: Path) -> None:
    class Broken:
        inputs: tuple[str, ...] = ()
        provider, prepacked_for = "CPU", ""

        def run(self, names: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
            length = max(map(len, feeds.values()))
            return [np.full((4, length, length), np.nan if length == 5 else 0.5, np.float32) for _ in names]

    tokens = [replace(text(length, "attention"), layers=(0,)) for length in (2, 5, 17)]
    with open_runner(bert_artifact) as runner:
        runner.attention._session = Broken()
        rows, _ = runner.run_sync(tokens)
    assert [row is None for row in rows] == [len(one) == 5 for one in tokens]
