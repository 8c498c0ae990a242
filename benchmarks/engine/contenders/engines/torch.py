"""transformers on torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import AutoModel

from benchmarks.engine.contenders.padding import Ids, Vectors, pad, pooled


class Torch:
    """BertModel with torch's own fused attention."""

    def __init__(self, model: Path, threads: int, streams: int, pooling: str, options: Mapping[str, str]) -> None:
        kind = getattr(torch, options["dtype"])
        self._model = AutoModel.from_pretrained(model, attn_implementation="sdpa", dtype=kind).eval()
        self._threads, self._pooling = threads // streams, pooling

    def __call__(self, texts: Sequence[Ids]) -> Vectors:
        torch.set_num_threads(self._threads)  # of the thread that calls
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(array) for name, array in pad(texts).items()}
            hidden = self._model(**inputs).last_hidden_state.float().numpy()
        return pooled(hidden, texts, self._pooling)
