"""/rerank: how well each text answers a query, by a cross-encoder or, where the operator allows it, by the cosine."""

from collections.abc import Sequence

import numpy as np

from service.artifact import Manifest
from service.errors import NoSuchHead
from service.tasks.base import TaskResult, Tasks
from service.tasks.labels.predict import OPTIONS, sigmoid
from service.tasks.schemas import RerankFields
from service.tasks.vectors.similarity import cosines


async def rerank(tasks: Tasks, request: RerankFields, texts: Sequence[str], *, timeout_seconds: float) -> TaskResult:
    """[texts] scores, higher is better, in the order of the texts.

    A cross-encoder reads each pair (query, text): its score is the sigmoid of its logit, or the logit itself
    (float64). Raises NoSuchHead for another model without BERT_RERANK=cosine.
    """
    if not is_cross_encoder(tasks.manifest):
        require_cosine(tasks)
        return await cosines(tasks, request.query, texts, request, name="query", timeout_seconds=timeout_seconds)
    pairs = [(request.query, text) for text in texts]
    result = await tasks.run(pairs, request, OPTIONS, timeout_seconds=timeout_seconds)
    logits = np.array([row["labels"][0, 0] for row in result.rows], np.float64)
    return result.finish(logits if request.raw_scores else sigmoid(logits))


def is_cross_encoder(manifest: Manifest) -> bool:
    """A text classifier with one label, as in other servers. Of two labels nothing says which one is relevance."""
    return "labels" in manifest.heads and len(manifest.labels) == 1


def require_cosine(tasks: Tasks) -> None:
    """Raises NoSuchHead without BERT_RERANK=cosine, for a model that is no cross-encoder."""
    if tasks.rerank_by_cosine:
        return
    if "labels" in tasks.manifest.heads:
        labels = ", ".join(tasks.manifest.labels[:2])
        why = f"this classifier has {len(tasks.manifest.labels)} ({labels}, ...): /predict scores pairs with them"
    else:
        why = "this model has no classifier of texts: BERT_RERANK=cosine ranks by the cosine of vectors"
    raise NoSuchHead(f"reranking needs a cross-encoder, a text classifier with one label; {why}")
