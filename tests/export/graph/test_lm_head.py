"""int8 artifacts select likely words in int8 and score them in fp32.

Their logits are compared with the float64 reference on the artifact's own hidden states.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.model_export.architecture import Architecture
from packbert.model_export.artifact.batch import Tokens, pack
from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.build import build_graph
from packbert.model_export.checkpoint import Checkpoint, NamedWeights
from packbert.model_export.graph.heads import SHORTLIST
from packbert.model_export.verification.reference import Reference
from tests.export.goldens import open_session
from tests.paths import GOLDEN, SAMPLE

OUTPUTS = ["log_sum_exp", "target_logits", "top_ids", "top_logits"]
TARGETS = (7, 11)  # unlikely words
ROUNDING = 1e-4  # of logits in fp32; int8 alone is off by 0.03 and more
INT8_ERROR = 0.1  # allowed in the logarithm of the sum, to which words outside the shortlist contribute


class Answers:
    """The outputs of an int8 graph for random texts with three masks each, and float64's for its hidden states."""

    def __init__(self, source: Path, folder: Path) -> None:
        built = build_graph(Checkpoint(source), "int8", "cpu")
        architecture = built.parts.architecture
        built.graph.output("hidden", built.heads.hidden, "float32", ["chosen", architecture.hidden])
        built.graph.save(folder / MODEL)
        session = open_session(folder / MODEL)
        batch = pack(texts(architecture))
        feeds = {one.name: batch.feeds[one.name] for one in session.get_inputs()}
        self.total, targets, self.ids, self.logits, hidden = session.run([*OUTPUTS, "hidden"], feeds)
        self.targets = targets.reshape(-1, len(TARGETS))
        self.exact = Reference(NamedWeights(Checkpoint(source))).vocabulary(hidden.astype(np.float64))


def texts(architecture: Architecture) -> list[Tokens]:
    random = np.random.default_rng(3)
    rows = [random.integers(5, architecture.vocabulary, length, dtype=np.int32) for length in range(8, 20)]
    requested: dict[str, Any] = {
        "outputs": frozenset(OUTPUTS),
        "masks": (1, 2, 5),
        "top_k": SHORTLIST // 2,
        "targets": TARGETS,
    }
    return [Tokens(ids=ids, types=np.zeros_like(ids), **requested) for ids in rows]


@pytest.fixture(scope="module", params=[SAMPLE, GOLDEN / "electra", GOLDEN / "albert"], ids=lambda folder: folder.name)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(request.param, tmp_path_factory.mktemp("scores"))


def test_likely_words_and_targets_have_the_order_and_the_logits_of_fp32(answers: Answers) -> None:
    """Targets however unlikely; probabilities are close, as words outside the shortlist are summed in int8."""
    best = np.argsort(-answers.exact, axis=1, kind="stable")[:, :5]
    assert np.array_equal(answers.ids[:, :5], best)
    exact, first = np.take_along_axis(answers.exact, answers.ids, axis=1), answers.logits[:, :1]
    assert np.abs((answers.logits - first) - (exact - exact[:, :1])).max() <= ROUNDING
    of_targets = answers.exact[:, list(TARGETS)] - exact[:, :1]
    assert np.abs((answers.targets - first) - of_targets).max() <= ROUNDING
    assert np.abs(answers.logits - answers.total - exact).max() <= INT8_ERROR
