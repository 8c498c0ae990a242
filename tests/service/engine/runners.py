"""Runners of artifacts, opened and closed."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.runner import ModelRunner
from packbert.service.scheduling.cores import SERIAL, Concurrency

PER_CORE = Concurrency(2, per_core=True)


@contextmanager
def open_runner(
    artifact: Artifact | Path,
    threads: int = 2,
    concurrency: Concurrency = SERIAL,
    kind: type[ModelRunner] = ModelRunner,
) -> Iterator[ModelRunner]:
    found = open_artifact(artifact) if isinstance(artifact, Path) else artifact
    runner = kind(found, threads=threads, concurrency=concurrency)
    runner.open()
    with closing(runner):
        yield runner
