"""Tasks over a queue that answers at once: the vector of a text is the number of times that it has each token."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service.artifact import Artifact
from packbert.service.settings import Settings
from packbert.service.tasks.base import Limits, Tasks
from packbert.service.tasks.defaults import embedding_defaults
from packbert.service.tokenization.tokenizer import Tokenizer
from tests.service.fakes import WholeQueue


class CountingQueue(WholeQueue):
    def __init__(self, width: int) -> None:
        self._width = width

    def answer(self, work: Sequence[Tokens], timeout_seconds: float) -> list[Row]:  # noqa: ARG002
        counts = [np.bincount(tokens.ids % self._width, minlength=self._width).astype(np.float32) for tokens in work]
        return [dict.fromkeys(tokens.outputs, count[None]) for tokens, count in zip(work, counts, strict=True)]


def tasks_with_vectors(artifact: Artifact, **fields: Any) -> Tasks:
    """The tasks of the artifact, with its tokenizer and without its model."""
    tokenizer = Tokenizer(artifact, max_characters=1000)
    tokenizer.open()
    return Tasks(
        manifest=artifact.manifest,
        tokenizer=tokenizer,
        queue=CountingQueue(artifact.manifest.sizes["hidden"]),
        limits=Limits(max_inputs=100, truncate=False),
        embedding=embedding_defaults(artifact.manifest, Settings(artifact=artifact.folder)),
        **fields,
    )
