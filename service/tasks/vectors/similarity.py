"""/similarity: the cosines of one text's vector with those of others."""

from collections.abc import Sequence

import numpy as np

from service.errors import ServiceError
from service.tasks.base import TaskResult, Tasks
from service.tasks.parameters import merge_parameters
from service.tasks.schemas import EmbedRequest, SimilarityRequest, TruncationFields, VectorFields
from service.tasks.vectors.embed import embed


async def similarity(tasks: Tasks, request: SimilarityRequest, *, timeout_seconds: float) -> TaskResult:
    """[sentences] float32: the cosine of each sentence with the source sentence."""
    if request.parameters is not None:
        request = merge_parameters(request)
    source, sentences = request.inputs.source_sentence, request.inputs.sentences
    return await cosines(tasks, source, sentences, request, name="source_sentence", timeout_seconds=timeout_seconds)


async def cosines(
    tasks: Tasks, text: str, others: Sequence[str], fields: TruncationFields, *, name: str, timeout_seconds: float
) -> TaskResult:
    """[others] float32, of the vectors that `embed` gives for the same fields.

    Raises what `embed` raises; the index of an error is that of one of `others`, and an error of `text` has none but
    begins with `name`.
    """
    tasks.check_count(others)
    shared = {key: getattr(fields, key) for key in VectorFields.model_fields if hasattr(fields, key)}
    request = EmbedRequest.model_validate(shared | {"inputs": [text, *others], "normalize": True})
    try:
        result = await embed(tasks.allowing(1 + len(others)), request, timeout_seconds=timeout_seconds)
    except ServiceError as error:
        if error.index == 0:
            error.message, error.index = f"{name}: {error.message}", None
        elif error.index is not None:
            error.index -= 1
        raise
    first, *_ = vectors = np.asarray(result.value, np.float64)
    # a matrix product would round a row differently by the number of rows
    return result.finish(np.clip((vectors[1:] * first).sum(axis=-1), -1.0, 1.0).astype(np.float32))
