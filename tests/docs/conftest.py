"""What the tests of pages share: a running service for each model that a page names."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import httpx
import pytest

from docs.tools.services import REVIEWS, golden, train_reviews
from packbert.model_export.export import export
from tests.conftest import Serve
from tests.export.goldens import Artifact

ClientOf = Callable[[str], httpx.Client]


@pytest.fixture(scope="session")
def artifact_of(exported: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The artifact of a model by its name on the pages."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def artifact(model: str) -> Path:
        if model != REVIEWS and "+" not in model:
            return exported(model).root
        made = folder / model.replace("/", "-")
        checkpoint = train_reviews(exported("sample").root, folder) if model == REVIEWS else golden(model, folder)
        export(checkpoint, made)
        return made

    return artifact


@pytest.fixture(scope="session")
def client_of(serve: Serve, artifact_of: Callable[[str], Path]) -> ClientOf:
    return lambda model: serve(artifact_of(model), BERT_TOKEN_BUDGET="256")
