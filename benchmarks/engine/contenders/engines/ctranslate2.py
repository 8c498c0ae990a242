"""CTranslate2."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import ctranslate2
import numpy as np

from benchmarks.engine.contenders.padding import Ids, Vectors, pooled


class CTranslate2:
    """An encoder with a worker for each stream."""

    def __init__(self, model: Path, threads: int, streams: int, pooling: str, options: Mapping[str, str]) -> None:
        self._encoder = ctranslate2.Encoder(
            str(model), device="cpu", inter_threads=streams, intra_threads=threads // streams, **options
        )
        self._pooling = pooling

    def __call__(self, texts: Sequence[Ids]) -> Vectors:
        found = self._encoder.forward_batch([ids.tolist() for ids in texts])
        return pooled(np.array(found.last_hidden_state), texts, self._pooling)
