"""Runs `bert-export` as a child process, whose memory is gone when the service starts.

Knows the command and its output, not what is exported. The child ends with this process, however this one ends, and
has a session of its own, so that Ctrl-C reaches it only through this process.
"""

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import IO

from model_export.artifact import source
from service.model_cache.checkpoint import ModelError
from service.settings import variables_with

EXPORTER = source.__name__.removesuffix(".artifact.source")  # the package, wherever it is installed
MODULES = (f"{EXPORTER}.export", "huggingface_hub", "ml_dtypes", "onnx", "onnx_ir", "safetensors", "tqdm")
PREFIX = "model_export: "  # of the sentence that the exporter fails with
PROGRESS_SECONDS = 5.0  # between two lines of progress in a log; a terminal gets bars
END_OF_LINE = re.compile(rb"(?<=[\r\n])")
BAR = re.compile(r"\|[^|]*\|")  # of tqdm: |####    |
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\r\n]")  # what moves a terminal's cursor
log = logging.getLogger("service")


def check_exporter() -> None:
    """Raises ModelError where the exporter is not installed."""
    if missing := [name for name in MODULES if not _is_installed(name)]:
        solution = "pip install 'bert-service[export]', or export elsewhere with bert-export and set BERT_ARTIFACT"
        raise ModelError(f"this installation cannot export: {missing[0]} is missing; {solution}")


def run_exporter(arguments: Sequence[str], lock: int | None = None) -> str:
    """The output of the command. `lock` is a descriptor that the child keeps until it ends.

    Raises ModelError with the exporter's sentence where it fails.
    """
    lifeline, write_end = os.pipe()  # the system closes the write end, however this process ends
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", EXPORTER, *arguments, "--lifeline", str(lifeline)],
            pass_fds=(lifeline,) if lock is None else (lifeline, lock),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables_with(TQDM_POSITION="-1"),  # huggingface_hub shows its progress in a pipe too
            start_new_session=True,
        )
    finally:
        os.close(lifeline)
    with process:
        try:
            fault = _show(process.stderr) if process.stderr else ""
            output = process.stdout.read().decode() if process.stdout else ""
            code = process.wait()
        finally:
            os.close(write_end)  # interrupts a child that still runs, which then removes what it has written
            process.wait()
    if code:
        signalled = f"the export was ended by signal {-code}; without enough memory the system ends it with signal 9"
        raise ModelError(fault or (signalled if code < 0 else f"the export failed with exit code {code}"))
    return output


def _show(stream: IO[bytes]) -> str:
    """Shows what the child reports until it ends; returns the sentence that it fails with, empty where it does not."""
    fault, rest, shown = "", b"", time.monotonic()
    terminal = sys.stderr.isatty()
    while chunk := os.read(stream.fileno(), 2**16):
        *lines, rest = END_OF_LINE.split(rest + chunk)
        for line in lines:
            text, _, sentence = line.decode(errors="replace").partition(PREFIX)
            fault = sentence.strip() or fault
            if terminal:
                sys.stderr.write(text)
                sys.stderr.flush()
                continue
            words, bars = BAR.subn("", CONTROL.sub("", text))
            if words.strip() and (not bars or time.monotonic() - shown >= PROGRESS_SECONDS):
                log.info("export: %s", " ".join(words.split()))
                shown = time.monotonic()
    return rest.decode(errors="replace").partition(PREFIX)[2].strip() or fault


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
