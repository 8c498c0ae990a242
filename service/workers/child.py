"""What all child processes have in common: a specification, heartbeats, an end with the supervisor."""

import asyncio
import fcntl
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from packbert.model_export.artifact.manifest import open_file
from packbert.service.artifact import Artifact, read_artifact
from packbert.service.logs import configure_logging
from packbert.service.settings import Settings

SWAPPED = "swapped"  # file of the private folder: of each name that was swapped, the artifact's folder and its source
LOAD_FAILED = 3  # exit code: the model cannot be loaded


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's only command-line argument, as JSON."""

    name: str  # engine, api-0, api-1, ...
    folder: str  # private to this service: the engine's socket and the metrics of all workers
    models: dict[str, str]  # the folder of each name's artifact, the default first
    device: str  # selects the artifact in the folder
    degraded: str  # why the CPU is used although there is an artifact for CUDA
    listener: int  # file descriptor of the socket to accept connections on
    lifeline: int  # file descriptor of a pipe that is closed when the supervisor ends
    heartbeat: int  # file descriptor of the write end of the heartbeat pipe
    admin_listener: int | None = None  # as `listener`, for BERT_ADMIN_PORT; None without one, and for the engine

    @property
    def descriptors(self) -> list[int]:
        """What a worker inherits."""
        own = [self.listener, self.lifeline, self.heartbeat]
        return own if self.admin_listener is None else [*own, self.admin_listener]

    @property
    def argument(self) -> str:
        return msgspec.json.encode(self).decode()

    def artifacts(self) -> list[Artifact]:
        """One for each model, the default first, as they are since the last swap."""
        models = self.models | {name: folder for name, (folder, _) in self.swapped().items()}
        return [read_artifact(Path(folder), self.device).served_as(name) for name, folder in models.items()]

    def remember(self, name: str, folder: str, source: str) -> None:
        """The artifact that answers for a name, for workers that start later. Only the engine writes it."""
        swapped = self.swapped() | {name: (folder, source)}
        (new := Path(self.folder, SWAPPED + ".new")).write_bytes(msgspec.json.encode(swapped))
        new.rename(Path(self.folder, SWAPPED))

    def swapped(self) -> dict[str, tuple[str, str]]:
        """The folder and the source of the artifact of each name that was swapped."""
        file = Path(self.folder, SWAPPED)
        return msgspec.json.decode(file.read_bytes(), type=dict[str, tuple[str, str]]) if file.exists() else {}

    @property
    def socket(self) -> Path:
        return engine_socket(Path(self.folder))


def engine_socket(folder: Path) -> Path:
    return folder / "engine.sock"


def metrics_dir(folder: Path) -> Path:
    return folder / "counts"


def worker_pids(folder: Path) -> dict[str, int]:
    """The process of each worker that has started, by name."""
    return {file.stem: int(file.read_text()) for file in sorted(folder.glob("*.pid"))}


def run_child(work: Callable[[WorkerSpec, Settings, list[Artifact]], int]) -> NoReturn:
    """Runs `work`, then ends the process with the exit code that it returns, even where a thread still runs."""
    spec = msgspec.json.decode(sys.argv[1], type=WorkerSpec)
    threading.Thread(target=_end_with_supervisor, args=(spec,), daemon=True, name="lifeline").start()
    settings = Settings.from_environment()
    configure_logging(settings, process=spec.name)
    _write_pid(Path(spec.folder), spec.name)
    code = work(spec, settings, spec.artifacts())
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _write_pid(folder: Path, name: str) -> None:
    """As a whole or not at all: others read it at any time."""
    written = folder / f"{name}.new"
    written.write_text(str(os.getpid()))
    written.rename(folder / f"{name}.pid")


def _end_with_supervisor(spec: WorkerSpec) -> None:
    """Also removes the private folder: a supervisor that was killed could neither do that nor end its workers."""
    os.read(spec.lifeline, 1)
    shutil.rmtree(spec.folder, ignore_errors=True)
    os._exit(1)


PREFIX = "packbert-"
LOCK = "lock"  # a file in it, locked (flock) while its supervisor lives


@contextmanager
def private_folder() -> Iterator[Path]:
    """With mode 0700, in TMPDIR; removed at the end. Raises OSError where it cannot be created."""
    remove_left_behind(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    try:
        with (made / LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = made.rename(made.with_name(made.name[1:]))  # locked before another service can see it
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def remove_left_behind(parent: Path) -> None:
    """Removes the folders of this user whose supervisor has ended: their lock is free."""
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):
            if path.parent.lstat().st_uid != os.getuid():
                continue
            with open_file(path, 0) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)


INTERVAL_SECONDS = 0.5
MAX_MISSED = 10  # heartbeats in a row; a worker that misses so many is considered hung


async def send_heartbeats(write_end: int) -> None:
    """Until cancelled. Raises OSError where the read end is closed."""
    while True:
        with suppress(BlockingIOError):  # the pipe is full: the supervisor has not read for hours
            os.write(write_end, b".")
        await asyncio.sleep(INTERVAL_SECONDS)


async def wait_for_loss(read_end: int) -> None:
    """Returns when heartbeats have come and then stopped. What the pipe holds at the start is of an earlier process."""
    _drain(read_end)
    missed = -1  # no heartbeat so far
    while missed < MAX_MISSED:
        await asyncio.sleep(INTERVAL_SECONDS)
        missed = 0 if _drain(read_end) else missed + (missed >= 0)


def open_pipe() -> tuple[int, int]:
    """The read end and the write end, both non-blocking."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _drain(read_end: int) -> bool:
    """Whether there was anything to read."""
    try:
        return bool(os.read(read_end, 2**16))
    except BlockingIOError:
        return False
