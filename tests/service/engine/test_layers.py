"""The graph of the hidden states in the engine: when it is opened, in company, and when the files change."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packbert.model_export.artifact.batch import LAST, Tokens
from packbert.service.engine import mapped_file
from packbert.service.engine.mapped_file import mappings_of
from packbert.service.errors import InferenceFailed
from packbert.service.scheduling.cores import Concurrency
from tests.export.goldens import Artifact
from tests.service.engine.changed_files import CHANGES, change_file
from tests.service.engine.test_attention import one, opened

PLAIN = frozenset({"cls", "mean", "tokens", "top_logits", "log_sum_exp"})


def text(length: int, *outputs: str) -> Tokens:
    ids = (np.arange(length, dtype=np.int32) * 7 + length) % 150
    layers = (LAST, 0, 1) if any(name.startswith("layer") for name in outputs) else ()
    return Tokens(
        ids=ids, types=ids * 0, outputs=frozenset(outputs), masks=(1,) if "top_logits" in outputs else (), layers=layers
    )


def test_a_service_that_no_request_asks_for_layers_opens_no_graph_for_them(bert_artifact: Path) -> None:
    with opened(bert_artifact) as runner:
        one(runner, text(9, *PLAIN))
        assert runner.layers._session is None
        one(runner, text(9, "layer_mean"))
        first = runner.layers._session
        assert first is not None
        one(runner, text(9, "layer_cls"))
        assert runner.layers._session is first


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_neither_a_text_nor_its_company_changes_by_a_bit(precision: str, exported: Callable[..., Artifact]) -> None:
    plain = [text(length, *PLAIN) for length in (3, 40, 90, 144)]
    asking = [text(length, "layer_tokens", "layer_mean") for length in (2, 16, 77)]
    with opened(exported("bert", precision).root, Concurrency(2, per_core=True)) as runner:
        alone = [one(runner, tokens) for tokens in (*plain, *asking)]
        for all_cores in (True, False):
            rows, _ = runner.run_sync([*plain, *asking], all_cores=all_cores)
            for row, want in zip(rows, alone, strict=True):
                assert row is not None
                assert row.keys() == want.keys()
                assert all(np.array_equal(row[name], want[name]) for name in want)


@pytest.mark.parametrize("shared", [False, True])
def test_its_weights_are_copied_to_memory_or_mapped_where_services_share_them(
    bert_artifact: Path, tmp_path: Path, shared: bool
) -> None:
    artifact = Path(shutil.copytree(bert_artifact, tmp_path / "artifact"))
    weights = artifact / "cpu" / "model.onnx.data"
    with opened(artifact) as runner:
        runner.layers.shared = tmp_path / "packed" if shared else None
        before = one(runner, text(9, "layer_tokens"))["layer_tokens"]
        copies = [mapped_file.shared_files(runner.artifact, tmp_path / "packed") / weights.name] if shared else []
        assert all(map(mappings_of, copies))
        assert not mappings_of(weights)
        weights.write_bytes(bytes(weights.stat().st_size))  # a change in place has no effect on copies
        assert np.array_equal(one(runner, text(9, "layer_tokens"))["layer_tokens"], before)


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_changed_since_the_start_are_an_error_and_not_a_wrong_answer(
    bert_artifact: Path, tmp_path: Path, change: str
) -> None:
    artifact = Path(shutil.copytree(bert_artifact, tmp_path / "artifact"))
    weights, graph = artifact / "cpu" / "model.onnx.data", artifact / "cpu" / "layers.onnx"
    with opened(artifact) as runner:
        change_file(change, weights=weights, graph=graph)
        with pytest.raises(InferenceFailed, match=r"files have changed since the service started.*layers.*restart it"):
            one(runner, text(5, "layer_cls"))
        assert one(runner, text(5, "cls"))["cls"].shape == (1, 32)
