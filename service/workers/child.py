"""What the processes of one service have in common: what a supervisor tells its children, and that a child does not outlive it.

Knows processes and file descriptors; knows nothing of engines or HTTP.
"""

import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from service.artifact import Artifact, read_artifact
from service.metrics import share
from service.settings import Settings

LOAD_FAILED = 3  # exit code: the model cannot be loaded


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A child's place: its one argument, as JSON."""

    name: str  # engine, api-0, api-1, ...
    folder: str  # private to this service: the engine's socket and everyone's counts
    device: str  # whose artifact is served
    degraded: str  # why the CPU is used though there is an artifact for the GPU
    listener: int  # file descriptor of the socket to accept on
    lifeline: int  # file descriptor of a pipe that ends with the supervisor
    pulse: int  # file descriptor of a pipe that tells the supervisor that the child's loop turns

    @property
    def argument(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def socket(self) -> Path:
        return socket_in(Path(self.folder))


def socket_in(folder: Path) -> Path:
    return folder / "engine.sock"


def metrics_dir(folder: Path) -> Path:
    return folder / "counts"


def run_child(work: Callable[[WorkerSpec, Settings, Artifact], int]) -> NoReturn:
    """`work` at the place that the command line tells, then the end of the process with its exit code, whatever still hangs."""
    post = msgspec.json.decode(sys.argv[1], type=WorkerSpec)
    threading.Thread(target=_end_with_supervisor, args=(post,), daemon=True, name="lifeline").start()
    settings = Settings.from_environment()
    logging.basicConfig(
        level=settings.log_level.upper(), format=f"%(asctime)s %(levelname)s {post.name} %(name)s %(message)s"
    )
    share(post.name)
    code = work(post, settings, read_artifact(settings.artifact, post.device))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_supervisor(post: WorkerSpec) -> None:
    """A supervisor that was killed could not clean up or end its children."""
    os.read(post.lifeline, 1)
    shutil.rmtree(post.folder, ignore_errors=True)
    os._exit(1)
