"""`python -m benchmarks.engine.contenders.ours WHAT PRECISION SIZE THREADS`: our engine, or its ceiling, as a process.

WHAT is `ours` (the artifact in build/benchmarks/SIZE-PRECISION) or `ceiling`. The requests and answers are those of
`benchmarks.engine.contenders.worker`, without vectors.
"""

import sys
from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.engine.alone import EngineAlone
from benchmarks.engine.ceiling import Ceiling, silence_warnings
from benchmarks.engine.contenders.arrangement import Tuned, Values
from benchmarks.engine.contenders.padding import Ids, Vectors
from benchmarks.engine.contenders.worker import Measured, serve
from benchmarks.harness.checkpoints import BUILD, SIZES
from packbert.model_export.artifact.batch import Tokens

BUDGETS = (128, 256, 512)  # BERT_TOKEN_BUDGET, as the sizes of batches that other engines try


class Ours:
    """The queue, batcher and model runner of the service, one text a request."""

    def __init__(self, size: str, precision: str, threads: int) -> None:
        self._engine = EngineAlone(BUILD / f"{size}-{precision}", threads)

    def tune(self, texts: Sequence[Ids], known: Values | None = None) -> Tuned:
        """Takes the size of batches `known` for `texts`, or else the fastest one of those that an operator may set."""
        measured, fastest = self._engine.calibration.token_budget, (float("inf"), 0)
        self.seconds(texts)  # warms up
        for budget in [known[1] or measured] if known else dict.fromkeys((measured, *BUDGETS)):
            self._engine.token_budget = budget
            fastest = min(fastest, (self.seconds(texts), budget))
        seconds, self._engine.token_budget = fastest
        shown = f"batches of {self._engine.token_budget} tokens; by itself the service takes {measured}"
        return Tuned(seconds, shown, (1, self._engine.token_budget))

    def seconds(self, texts: Sequence[Ids]) -> float:
        outputs = frozenset({"cls"})
        return self._engine.seconds([[Tokens(ids=ids, types=np.zeros_like(ids), outputs=outputs)] for ids in texts])

    def vectors(self, texts: Sequence[Ids]) -> Vectors:
        raise NotImplementedError("benchmarks.engine.accuracy runs our engine itself")


class CeilingOnly:
    """The bare products for as many rows as the texts have tokens."""

    def __init__(self, size: str, precision: str, threads: int) -> None:
        self._ceiling = Ceiling(SIZES[size], precision, threads)

    def tune(self, texts: Sequence[Ids], known: Values | None = None) -> Tuned:  # noqa: ARG002 - nothing to choose
        return Tuned(self.seconds(texts), "products alone")

    def seconds(self, texts: Sequence[Ids]) -> float:
        return self._ceiling.seconds(sum(map(len, texts)))

    def vectors(self, texts: Sequence[Ids]) -> Vectors:
        raise NotImplementedError("products give no vectors")


def open_ours(what: str, precision: str, size: str, threads: int) -> Measured:
    silence_warnings()
    return Ours(size, precision, threads) if what == "ours" else CeilingOnly(size, precision, threads)


if __name__ == "__main__":
    what, precision, size, threads = sys.argv[1:]
    serve(partial(open_ours, what, precision, size, int(threads)))
