"""Downloads and exports a model in a child process if the cache has no artifact of it."""

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from packbert.model_export.artifact.cpu import BF16, has_fast_int8, processor_name, why_bf16_unavailable
from packbert.model_export.artifact.manifest import Manifest, fault_of_part

from .artifact import ManifestError, available
from .model_cache import Cache, ModelError, Recipe, Source, content_digest, file_states, find_source
from .settings import Settings, SettingsError, variables_with

PACKAGES = ("huggingface_hub", "ml_dtypes", "onnx", "safetensors", "tqdm")  # of the extra export
PREFIX = re.compile("packbert (?:export|download): ")  # of the sentence that the exporter fails with
AUTO = "auto"  # precision
PROGRESS_SECONDS = 5.0  # between two lines of progress in a log; a terminal gets bars
END_OF_LINE = re.compile(rb"(?<=[\r\n])")
BAR = re.compile(r"\|[^|]*\|")  # of tqdm: |####    |
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\r\n]")  # what moves a terminal's cursor
log = logging.getLogger("service")
exporters: set["subprocess.Popen[bytes]"] = set()  # that run


class ModelUnavailable(ModelError):
    """The hub does not answer: a later start may have the model."""


def check_exporter(source: Source) -> None:
    """Raises ModelError if the exporter is not installed."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        part = fault_of_part(source.folder) if source.folder is not None else ""
        fault = f"{source.title} is no artifact, and this installation cannot export: {missing[0]} is missing"
        solution = "install packbert with the extra export, or export elsewhere with packbert export"
        raise ModelError(part or f"{fault}; {solution} and name the artifact")


def run_exporter(arguments: Sequence[str], lock: int | None = None) -> str:
    """The output of the command. `lock` is a descriptor that the child keeps until it ends.

    Raises ModelError with the exporter's sentence if it fails, ModelUnavailable if the hub does not answer.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "packbert", *arguments, "--parent", str(os.getpid())],
        pass_fds=() if lock is None else (lock,),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables_with(TQDM_POSITION="-1"),  # huggingface_hub shows its progress in a pipe too
        start_new_session=True,
    ) as process:
        exporters.add(process)
        try:
            fault = _show(process.stderr) if process.stderr else ""
            output = process.stdout.read().decode() if process.stdout else ""
            code = process.wait()
        finally:
            process.terminate()  # if it still runs, it removes what it has written
            process.wait()
            exporters.discard(process)
    if code:
        signalled = f"the export was ended by signal {-code}; without enough memory the system ends it with signal 9"
        kind = ModelUnavailable if code == os.EX_TEMPFAIL else ModelError
        raise kind(fault or (signalled if code < 0 else f"the export failed with exit code {code}"))
    return output


def end_exports(seconds: float) -> None:
    """Ends the exporters of this process: those that have not removed what they wrote within the time are killed."""
    until, ending = time.monotonic() + seconds, list(exporters)
    for process in ending:
        process.terminate()
    for process in ending:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        process.kill()  # does nothing if it has ended


def _show(stream: IO[bytes]) -> str:
    """Shows what the child reports until it ends; returns the sentence that it fails with, empty if it does not."""
    fault, rest, shown = "", b"", time.monotonic()
    terminal = sys.stderr.isatty()
    while chunk := os.read(stream.fileno(), 2**16):
        *lines, rest = END_OF_LINE.split(rest + chunk)
        for line in lines:
            text, *sentences = PREFIX.split(line.decode(errors="replace"), maxsplit=1)
            fault = "".join(sentences).strip() or fault
            if terminal:
                sys.stderr.write(text)
                sys.stderr.flush()
                continue
            words, bars = BAR.subn("", CONTROL.sub("", text))
            if words.strip() and (not bars or time.monotonic() - shown >= PROGRESS_SECONDS):
                log.info("export: %s", " ".join(words.split()))
                shown = time.monotonic()
    return "".join(PREFIX.split(rest.decode(errors="replace"), maxsplit=1)[1:]).strip() or fault


def find_model(settings: Settings) -> Path | Source:
    """The folder of BERT_MODEL if it is an artifact, or the checkpoint: nothing is downloaded.

    Raises ModelError if it is neither, ManifestError for an artifact of another precision.
    """
    assert settings.model is not None
    if available(folder := Path(settings.model).expanduser()):
        if "precision" in settings.model_fields_set:
            _check_precision(folder, settings.precision)
        return folder
    if settings.precision == BF16 and (fault := why_bf16_unavailable()):
        raise ModelError(f"BERT_PRECISION is bf16, but {fault}")
    return find_source(settings.model)


def is_hub_id(settings: Settings) -> bool:
    """Whether BERT_MODEL is downloaded: as the key of a sort, all are checked before. Raises as `find_model`."""
    source = find_model(settings)
    return isinstance(source, Source) and source.folder is None


def prepare_artifact(source: Source, recipe: Recipe, cache: Cache) -> Path:
    """The folder of the artifact by a recipe of `make_recipe`. Two processes at once export once; the second waits.

    Raises ModelError if the model cannot be had.
    """
    known = cache.recall(source.title)
    digest = known.get("digest", "") if source.folder is None or _is_unchanged(source.folder, known) else ""
    if found := cache.find(replace(recipe, digest=digest)):
        commit = f" ({known['commit']})" if "commit" in known else ""
        log.info("%s%s: exported before, in %s", source.title, commit, found)
        return found
    try:
        return _export(source, recipe, cache)
    except OSError as error:
        raise ModelError(f"{error.filename or source.title} cannot be read: {error.strerror or error}") from error


def prepare_model(settings: Settings, source: Source, device: str) -> Path:
    """The folder of the checkpoint's artifact, in the cache. Raises as `prepare_artifact`, and SettingsError."""
    try:
        cache = Cache(settings.cache_folder)
    except RuntimeError as error:
        raise SettingsError(f"BERT_CACHE: it has no default here ({error}): set it to a folder") from error
    return prepare_artifact(source, make_recipe(source, device, settings.precision), cache)


def _export(source: Source, recipe: Recipe, cache: Cache) -> Path:
    """The folder of the artifact of a checkpoint whose digest is unknown or has none. Raises as `prepare_artifact`."""
    folder = source.folder or _download(source)
    states, digest = file_states(folder), content_digest(folder)
    recipe = replace(recipe, digest=digest)
    if not cache.find(recipe):
        check_exporter(source)
        on_wait = partial(log.info, "%s: waiting for another process that exports it", source.title)
        with cache.lock(recipe, on_wait) as lock:
            if not cache.find(recipe):
                _run_export(source, folder, recipe, cache, lock)
                if file_states(folder) != states:
                    cache.discard(recipe)
                    raise ModelError(f"{folder} was changed while it was exported: start again when it is complete")
    state = {"commit": folder.name} if source.folder is None else {"files": states}
    cache.remember(source.title, digest=digest, **state)
    return cache.artifact(recipe)


def _download(source: Source) -> Path:
    check_exporter(source)
    log.info("%s: downloading", source.title)
    folder = Path(run_exporter(["download", source.title]).strip())
    log.info("%s: commit %s", source.title, folder.name)
    return folder


def _run_export(source: Source, folder: Path, recipe: Recipe, cache: Cache, lock: int) -> None:
    log.info("%s: exporting for %s in %s", source.title, recipe.device, recipe.precision)
    options = ["--device", recipe.device, "--precision", recipe.precision, "--name", recipe.name]
    try:
        report = run_exporter(["export", str(folder), str(cache.artifact(recipe)), *options], lock)
    except BaseException:
        cache.discard(recipe)  # of a killed exporter
        raise
    for line in report.splitlines():
        log.info("%s", line)


def _is_unchanged(folder: Path, known: Mapping[str, Any]) -> bool:
    """Whether the checkpoint's files are those that the cache knows."""
    try:
        return bool(known.get("files") == [list(state) for state in file_states(folder)])
    except OSError:
        return False


def make_recipe(source: Source, device: str, precision: str) -> Recipe:
    """Of an artifact for the device cpu or cuda; the digest is still to be found."""
    chooses = precision == AUTO and device == "cpu"
    return Recipe(
        digest="",
        name=source.name,
        device=device,
        precision=precision,
        fast_int8=chooses and has_fast_int8(),
        bf16_on=processor_name() if chooses and not why_bf16_unavailable() else "",
    )


def _check_precision(folder: Path, precision: str) -> None:
    """Raises ManifestError for an artifact of another precision than `precision`, which is not AUTO."""
    for device in available(folder) if precision != AUTO else ():
        if (found := Manifest.read(folder / device).precision) != precision:
            solution = "name its checkpoint, or leave BERT_PRECISION out"
            raise ManifestError(f"{folder / device} is an artifact in {found}, not in {precision}: {solution}")
