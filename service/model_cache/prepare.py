"""Finds the artifact of a model in the cache; where there is none, downloads and exports the checkpoint."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model_export.artifact.cpu import BF16, has_fast_int8, why_bf16_unavailable
from model_export.artifact.manifest import Manifest
from service.artifact import ManifestError, available
from service.model_cache.cache import Cache, Recipe
from service.model_cache.checkpoint import ModelError, Source, content_digest, file_states, find_source
from service.model_cache.exporter import check_exporter, run_exporter

AUTO = "auto"  # precision
log = logging.getLogger("service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be served."""

    model: str  # a hub id, a checkpoint's folder, or an artifact
    device: str  # cpu or cuda
    precision: str | None  # None: of an artifact its own, of a checkpoint fp32
    update: bool  # ask the hub for a newer commit


def prepare_artifact(wanted: Wanted, cache: Cache) -> Path:
    """The folder of the artifact. Two processes at once export once; the second one waits.

    Raises ModelError where the model cannot be had, ManifestError for an artifact of another precision.
    """
    if available(folder := Path(wanted.model).expanduser()):
        _check_precision(folder, wanted.precision)
        return folder
    if wanted.precision == BF16 and (fault := why_bf16_unavailable()):
        raise ModelError(f"BERT_PRECISION is bf16, but {fault}")
    source = find_source(wanted.model)
    known = cache.recall(source.title)
    digest = known.get("digest", "") if source.folder is None or _is_unchanged(source.folder, known) else ""
    found = cache.find(_recipe(source, digest, wanted))
    asks_hub = wanted.update and source.folder is None
    if found and not asks_hub:
        commit = f" ({known['commit']})" if "commit" in known else ""
        log.info("%s%s: exported before, in %s", source.title, commit, found)
        return found
    try:
        return _export(source, wanted, cache)
    except ModelError as error:
        if not found:
            raise
        log.warning("%s: serving commit %s, because there is no newer one: %s", source.title, known["commit"], error)
        return found
    except OSError as error:
        raise ModelError(f"{error.filename or source.title} cannot be read: {error.strerror or error}") from error


def _export(source: Source, wanted: Wanted, cache: Cache) -> Path:
    """As `prepare_artifact`, for a checkpoint whose digest is unknown or has no artifact."""
    folder = source.folder or _download(source)
    states, digest = file_states(folder), content_digest(folder)
    recipe = _recipe(source, digest, wanted)
    if not cache.find(recipe):
        check_exporter()
        on_wait = partial(log.info, "%s: waiting for another process that exports it", source.title)
        with cache.lock(recipe, on_wait) as lock:
            if not cache.find(recipe):
                cache.remove_remains()
                _run_export(source, folder, recipe, cache, lock)
                if file_states(folder) != states:
                    cache.discard(recipe)
                    raise ModelError(f"{folder} was changed while it was exported: start again when it is complete")
    state = {"commit": folder.name} if source.folder is None else {"files": states}
    cache.remember(source.title, digest=digest, **state)
    return cache.artifact(recipe)


def _download(source: Source) -> Path:
    check_exporter()
    log.info("%s: downloading", source.title)
    folder = Path(run_exporter(["download", source.title]).strip())
    log.info("%s: commit %s", source.title, folder.name)
    return folder


def _run_export(source: Source, folder: Path, recipe: Recipe, cache: Cache, lock: int) -> None:
    log.info("%s: exporting for %s in %s", source.title, recipe.device, recipe.precision)
    options = ["--device", recipe.device, "--precision", recipe.precision, "--name", recipe.name]
    report = run_exporter([str(folder), str(cache.artifact(recipe)), *options], lock)
    for line in report.splitlines():
        log.info("%s", line)


def _is_unchanged(folder: Path, known: Mapping[str, Any]) -> bool:
    """Whether the checkpoint's files are those that the cache knows."""
    try:
        return bool(known.get("files") == [list(state) for state in file_states(folder)])
    except OSError:
        return False


def _recipe(source: Source, digest: str, wanted: Wanted) -> Recipe:
    precision, device = wanted.precision or "fp32", wanted.device
    chooses = precision == AUTO and device == "cpu"
    return Recipe(
        digest=digest,
        name=source.name,
        device=device,
        precision=precision,
        fast_int8=chooses and has_fast_int8(),
        fast_bf16=chooses and not why_bf16_unavailable(),
    )


def _check_precision(folder: Path, precision: str | None) -> None:
    """Raises ManifestError for an artifact of another precision than the one that was asked for."""
    for device in available(folder):
        found = Manifest.read(folder / device).precision
        if precision not in (None, AUTO, found):
            solution = "name its checkpoint, or leave BERT_PRECISION out"
            raise ManifestError(f"{folder / device} is an artifact in {found}, not in {precision}: {solution}")
