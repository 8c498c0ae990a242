"""/embed and /v1/embeddings: a vector for each text."""

import numpy as np
from numpy.typing import NDArray

from service.errors import Invalid
from service.tasks.base import TaskResult, Tasks, as_list
from service.tasks.schemas import EmbedRequest
from service.tasks.tokenizer import EncodeOptions

OPTIONS = {name: EncodeOptions(outputs=frozenset({name})) for name in ("cls", "pooler", "mean")}


async def embed(tasks: Tasks, request: EmbedRequest, *, timeout_seconds: float) -> TaskResult:
    """[inputs, dimensions] float32."""
    tasks.require_head("pooler" if request.pooling == "pooler" else "cls")
    width = tasks.manifest.sizes["hidden"]
    if request.dimensions is not None and request.dimensions > width:
        raise Invalid(f"dimensions is {request.dimensions}; this model has {width}", code="dimensions")
    texts, options = as_list(request.inputs), OPTIONS[request.pooling]
    result = await tasks.run(texts, request, options, timeout_seconds=timeout_seconds)
    vectors = np.concatenate([row[request.pooling] for row in result.rows])[:, : request.dimensions]
    return result.finish(unit_length(vectors) if request.normalize else np.ascontiguousarray(vectors))


def unit_length(vectors: NDArray[np.generic]) -> NDArray[np.float32]:
    """Each row of [n, d] divided by its Euclidean length."""
    rows = vectors.astype(np.float64)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), np.float32)
