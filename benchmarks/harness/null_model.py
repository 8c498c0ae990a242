"""`BERT_MODEL=FOLDER BERT_PORT=PORT python -m benchmarks.harness.null_model`: the service around a model that
computes nothing.

A request to it costs what it costs before and after the model: HTTP, validation, tokenizing, the queue, encoding. A
text of the model's greatest length is never answered, so that the queue can be kept full.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import (
    ATTENTION_OUTPUTS,
    MASK,
    OUTPUTS,
    POOLED,
    SENTENCE,
    SEQUENCE,
    SPARSE,
    TARGET,
    TOKEN,
    Batch,
    Row,
    Tokens,
)
from packbert.service.address import bind_address
from packbert.service.engine.calibration import Calibration
from packbert.service.engine.device import select_artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.engine.runner import ModelRunner
from packbert.service.http.server import Server, Starting, run
from packbert.service.models import Models
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings

TOKENS_PER_SECOND = 1e6
SPARSE_WEIGHTS = 100  # of a text; those of a model depend on the text


class NullRunner(ModelRunner):
    """Returns rows of the right shapes at once; every [CLS] vector is the canary's."""

    def open(self, folder: Path | None = None) -> int:  # noqa: ARG002
        self.provider = "none"
        self._known = cache(self._output)
        return 0

    def close(self) -> None: ...

    async def run(self, sequences: Sequence[Tokens], *, all_cores: bool = True) -> tuple[list[Row | None], Batch]:  # noqa: ARG002
        if any(len(one) == self.artifact.manifest.max_tokens for one in sequences):
            await asyncio.Event().wait()
        size = sum(map(len, sequences))
        return [self._row(one) for one in sequences], Batch(
            feeds={}, outputs=frozenset(), spans={}, tokens=size, slots=size, owners=sequences
        )

    def _row(self, tokens: Tokens) -> Row:
        masks = len(tokens.masks)
        rows = {SEQUENCE: 1, POOLED: 1, SENTENCE: 1, TOKEN: len(tokens), SPARSE: SPARSE_WEIGHTS}
        rows |= {MASK: masks, TARGET: masks * len(tokens.targets)}
        own = {"layer_tokens": len(tokens) * len(tokens.layers)}
        own |= dict.fromkeys(("layer_cls", "layer_mean"), len(tokens.layers))
        own["attention_mean"] = len(tokens.layers) * len(tokens) ** 2
        own["attention"] = self.artifact.manifest.sizes["heads"] * own["attention_mean"]
        return {
            name: self._known(name, own[name] if name in own else rows[OUTPUTS[name]], tokens.top_k)
            for name in tokens.outputs
        }

    def _output(self, name: str, rows: int, top_k: int) -> NDArray[np.generic]:
        """[rows, ...] of the type that the manifest gives for the output."""
        outputs = self.artifact.manifest.outputs
        tensor = outputs.get(name, outputs["tokens"])  # states of layers are no output of the graph
        shape = (rows, *(width if isinstance(width, int) else top_k for width in tensor.shape[1:]))
        if name in ATTENTION_OUTPUTS:
            shape = (rows,)
        if name == "cls":
            return np.tile(np.array(self.artifact.manifest.canary.cls, tensor.dtype), (rows, 1))
        draw = np.random.default_rng(6)
        if tensor.dtype.startswith("int"):
            return draw.integers(0, self.artifact.manifest.sizes["vocabulary"], shape, tensor.dtype)
        return draw.standard_normal(shape).astype(tensor.dtype)


class NullEngine(ModelEngine):
    def _measure(self) -> Calibration:
        return Calibration(
            token_budget=self.settings.token_budget or self.artifact.manifest.max_tokens,
            tokens_per_second=TOKENS_PER_SECOND,
            batch_invariant=True,
            smallest_cosine=1.0,
            canary_error=0.0,
        )


def main() -> int:
    settings = Settings.from_environment()
    assert settings.model is not None  # the benchmarks set BERT_MODEL to an artifact
    logging.basicConfig(level=settings.log_level.upper())
    artifact = select_artifact(Path(settings.model), "cpu")
    engine = NullEngine(artifact, settings, Metrics(), make_runner=NullRunner)
    models = Models([engine])

    async def make(_: Starting) -> Models:
        return models

    server = Server(settings, models.metrics, make)
    return run(server, bind_address(settings.host, settings.port, "BERT_PORT"))


if __name__ == "__main__":
    sys.exit(main())
