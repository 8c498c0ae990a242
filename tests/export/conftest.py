"""Golden checkpoints, exported once per session."""

from collections.abc import Callable

import pytest

from model_export.export import export
from tests.export.goldens import Artifact
from tests.paths import GOLDEN


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Artifact]:
    """The artifact of a golden checkpoint, exported once per session."""
    made: dict[tuple[str, str], Artifact] = {}
    root = tmp_path_factory.mktemp("artifacts")

    def artifact(name: str, precision: str = "fp32") -> Artifact:
        key = (name, precision)
        if key not in made:
            folder = root / f"{name}-{precision}"
            made[key] = Artifact(folder / "cpu", export(GOLDEN / name, folder, precision=precision))
        return made[key]

    return artifact
