"""The model that computes nothing, with which `benchmarks.server.overhead` measures the cost of a request."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.null_model import NullRunner
from packbert.model_export.artifact.batch import ATTENTION_OUTPUTS, LAST, LAYER, MASK, OUTPUTS, SPARSE, TARGET, Tokens
from packbert.service.artifact import open_artifact
from packbert.service.engine.runner import ModelRunner

OF_SPARSE = {name for name, kind in OUTPUTS.items() if kind == SPARSE}  # asked for together


# in a golden BERT
MISSING = {"labels", "tags", "sentence", "spans", "choices", "mean_labels", "mean_choices", "multi", "token_weights"}


@pytest.mark.parametrize("output", sorted(OUTPUTS.keys() - MISSING))
def test_it_returns_the_shapes_and_types_of_the_real_runner(bert_artifact: Path, output: str) -> None:
    artifact = open_artifact(bert_artifact)
    kind, layers = OUTPUTS[output], (0, 2 if output in ATTENTION_OUTPUTS else LAST)
    one = Tokens(
        ids=np.arange(6, dtype=np.int32),
        types=np.zeros(6, np.int32),
        outputs=frozenset(OF_SPARSE if kind == SPARSE else {output}),
        masks=(2, 3) if kind in (MASK, TARGET) else (),
        top_k=4,
        targets=(7, 8, 9) if kind == TARGET else (),
        layers=layers if kind == LAYER else (),
    )
    answers = []
    for runner in (ModelRunner(artifact, 1), NullRunner(artifact, 1)):
        runner.open()
        answers.append(asyncio.run(runner.run([one]))[0][0])
        runner.close()
    known, found = answers
    assert known is not None
    assert found is not None
    first = 1 if kind == SPARSE else 0  # a text has as many sparse weights as its words have
    assert {name: (rows.shape[first:], rows.dtype) for name, rows in found.items()} == {
        name: (rows.shape[first:], rows.dtype) for name, rows in known.items()
    }
