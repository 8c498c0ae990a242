"""Models behind the application in this process, for routes that need no socket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.export.goldens import Exported
from tests.service.in_process import InProcessClient, serve_in_process


@pytest.fixture(scope="session")
def encoder(bert_artifact: Path) -> Iterator[InProcessClient]:
    """A plain encoder whose operator allows scores by cosine."""
    with serve_in_process(bert_artifact, BERT_RERANK="cosine") as client:
        yield client


@pytest.fixture(scope="session")
def scorer(exported: Exported) -> Iterator[InProcessClient]:
    """A cross-encoder."""
    with serve_in_process(exported("distilbert-labels").root) as client:
        yield client
