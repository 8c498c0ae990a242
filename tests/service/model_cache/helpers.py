"""A cache in a folder of the test, and processes that find or make an artifact in it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packbert.service.model_cache import Recipe, Source, find_source
from packbert.service.prepare import make_recipe
from tests.paths import GOLDEN

PREPARE = """
import logging, sys
from pathlib import Path
from packbert.service.model_cache import Cache, find_source
from packbert.service.prepare import make_recipe, prepare_artifact
logging.basicConfig(level="INFO", format="%(message)s")
source = find_source(sys.argv[1])
print(prepare_artifact(source, make_recipe(source, "cpu", "fp32"), Cache(Path(sys.argv[2]))))
"""
LIMITED = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(sys.argv.pop(1)),)); "


def copy_checkpoint(folder: Path) -> Path:
    """The golden BERT's checkpoint without what transformers answered."""
    return Path(shutil.copytree(GOLDEN / "bert", folder, ignore=shutil.ignore_patterns("answers.json", "expected.npz")))


def stop_exporter(process: subprocess.Popen[str]) -> int:
    """Stops the exporter that a thread of `process` starts as its child, with SIGSTOP; its process id.

    It is stopped when it catches SIGTERM: a thread on a busy machine may take longer to keep it as one that runs.
    """
    while process.poll() is None:
        for thread in Path(f"/proc/{process.pid}/task").glob("*/children"):
            for child in thread.read_text().split():
                if b"--parent" in Path(f"/proc/{child}/cmdline").read_bytes() and sigterm_in("SigCgt", int(child)):
                    os.kill(int(child), signal.SIGSTOP)
                    return int(child)
    raise AssertionError(f"{process.args!r} ended without an exporter")


def sigterm_in(field: str, process: int) -> bool:
    """Whether SIGTERM is one of the signals of this field of the process's status."""
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(status.partition(f"{field}:")[2].split()[0], 16) & 1 << (signal.SIGTERM - 1))


def wanted(model: Path | str, *, precision: str = "fp32") -> tuple[Source, Recipe]:
    source = find_source(str(model))
    return source, make_recipe(source, "cpu", precision)


def start_preparing(model: Path, cache: Path) -> subprocess.Popen[str]:
    """A process that prints the artifact's folder, and its log to stderr."""
    return start([sys.executable, "-c", PREPARE, str(model), str(cache)])


def start(command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BERT_")} | variables
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def artifacts_in(cache: Path) -> list[str]:
    """All that lies below the folder of artifacts."""
    return sorted(str(path.relative_to(cache)) for path in (cache / "artifacts").rglob("*"))
