"""What tests share: checkpoints exported once per session, and one real server process on the golden BERT."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import httpx
import hypothesis
import pytest

from packbert.model_export.artifact import cpu
from packbert.model_export.artifact.manifest import MANIFEST, Manifest
from packbert.model_export.export import export
from tests import checkpoints
from tests.export.goldens import Artifact, changed
from tests.export.kept import alone, digest, folder_of_this_exporter
from tests.paths import GOLDEN, SAMPLE
from tests.serving import running

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")  # a busy one is slow, which is no fault


@pytest.fixture(scope="session")
def exported(pytestconfig: pytest.Config) -> Callable[..., Artifact]:
    """The artifact of a golden checkpoint, as "bert" or "zero-shot/bert", or of the sample.

    Tests do not change it. Kept in pytest's cache under a digest of all that the export depends on; several workers may
    ask for one at once.
    """
    assert pytestconfig.cache is not None
    root = folder_of_this_exporter(pytestconfig.cache.mkdir("artifacts"))

    @cache
    def artifact(name: str, precision: str = "fp32") -> Artifact:
        source, base = SAMPLE if name == "sample" else GOLDEN / name, checkpoints.base_of(name)
        files = [*source.rglob("*"), *((GOLDEN / base).rglob("*") if base else ())]
        folder = root / f"{name.replace('/', '-')}-{precision}-{digest(files)}"
        with alone(folder), pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as made:
            if (folder / "cpu" / MANIFEST).exists():  # the export writes its folder whole or not at all
                return Artifact(folder / "cpu", Manifest.read(folder / "cpu"))
            if precision == cpu.BF16:  # computed right on all processors, only not fast
                patch.setattr(cpu, "_flags", lambda: {"avx512_bf16"})
            if base:
                source = checkpoints.checkpoint(name, Path(made) / source.name)
            return Artifact(folder / "cpu", export(source, folder, precision=precision))

    return artifact


@pytest.fixture(scope="session")
def bert_artifact(exported: Callable[..., Artifact]) -> Path:
    return exported("bert").root


@pytest.fixture(scope="session")
def narrow_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with heads of 4 channels, which no packed kernel takes: a CPU runs its graph for CUDA too."""
    return changed("bert", tmp_path_factory.mktemp("narrow") / "checkpoint", num_attention_heads=8)


class Serve(Protocol):
    """Returns a client of a running `packbert serve`, one for the same artifact and settings in all tests."""

    def __call__(self, artifact: Path, **settings: str) -> httpx.Client: ...


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        @cache
        def started(artifact: Path, settings: frozenset[tuple[str, str]]) -> httpx.Client:
            return stack.enter_context(running({"BERT_MODEL": str(artifact)} | dict(settings)))[1]

        yield lambda artifact, **settings: started(artifact, frozenset(({"BERT_MAX_INPUTS": "100"} | settings).items()))


@pytest.fixture(scope="session")
def server(serve: Serve, bert_artifact: Path) -> httpx.Client:
    return serve(bert_artifact)


@pytest.fixture(scope="session")
def classifier(serve: Serve, exported: Callable[..., Artifact]) -> httpx.Client:
    return serve(exported("bert-labels").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(scope="session")
def tagger(serve: Serve, exported: Callable[..., Artifact]) -> httpx.Client:
    return serve(exported("bert-tags").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(scope="session")
def entailment(serve: Serve, exported: Callable[..., Artifact]) -> httpx.Client:
    """A classifier with the labels of entailment."""
    return serve(exported("zero-shot/bert").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(scope="session")
def cross_encoder(serve: Serve, exported: Callable[..., Artifact]) -> httpx.Client:
    """A classifier with one label."""
    return serve(exported("distilbert-labels").root, BERT_TOKEN_BUDGET="256")
