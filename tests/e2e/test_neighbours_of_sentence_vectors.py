"""A checkpoint's own vector has the same bits alone and in any batch, in fp32 and in int8, whatever else is asked."""

from collections.abc import Callable

import numpy as np
import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.service.artifact import open_artifact
from packbert.service.engine.runner import ModelRunner
from packbert.service.scheduling.cores import Concurrency
from tests.e2e.test_neighbours import equal
from tests.export.goldens import Artifact

OUTPUTS = [
    frozenset({"sentence"}),
    frozenset({"sentence", "cls"}),
    frozenset({"sentence", "mean"}),
    frozenset({"cls"}),
    frozenset({"mean"}),
    frozenset({"sentence", "pooler"}),
]


def texts(vocabulary: int, longest: int) -> list[Tokens]:
    """Of all length classes, some with a prompt that is left out."""
    random = np.random.default_rng(7)
    lengths = [*range(3, 40), *random.integers(40, longest + 1, 27).tolist()]
    ids = [random.integers(5, vocabulary, length, dtype=np.int32) for length in lengths]
    firsts = [int(random.integers(0, len(one) - 1)) if i % 3 == 0 else 0 for i, one in enumerate(ids)]
    return [
        Tokens(ids=one, types=np.zeros_like(one), outputs=OUTPUTS[i % len(OUTPUTS)], pooled_from=first)
        for i, (one, first) in enumerate(zip(ids, firsts, strict=True))
    ]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["all-modes", "deep", "last-token", "max"])
def test_a_vector_does_not_depend_on_its_batch(name: str, precision: str, exported: Callable[..., Artifact]) -> None:
    folder, manifest = (artifact := exported(f"sentence-transformers/{name}", precision)).root, artifact.manifest
    runner = ModelRunner(open_artifact(folder), threads=2, concurrency=Concurrency(2, per_core=True))
    runner.open()
    work = texts(manifest.sizes["vocabulary"], manifest.max_tokens)
    alone = [runner.run_sync([text])[0][0] for text in work]
    random = np.random.default_rng(8)
    for all_cores in (True, False, False):
        for batch in np.array_split(random.permutation(len(work)), 4):
            rows, _ = runner.run_sync([work[i] for i in batch], all_cores=all_cores)
            changed = [len(work[i]) for i, row in zip(batch, rows, strict=True) if not equal(row, alone[i])]
            assert changed == [], "lengths of the texts whose vector changed in the batch"
    rows, _ = runner.run_sync([work[3], work[4]])  # none of the two asks for a sentence vector
    assert all(equal(row, alone[i]) for row, i in zip(rows, (3, 4), strict=True))
    runner.close()
