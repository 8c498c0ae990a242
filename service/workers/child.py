"""What all workers have in common: a specification, metrics in shared files, and an end no later than the supervisor's.

Knows processes and file descriptors. The supervisor imports this module too, so it imports neither NumPy, ONNX Runtime
nor anything of HTTP.
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
from service.logs import configure_logging
from service.settings import Settings

LOAD_FAILED = 3  # exit code: the model cannot be loaded
METRICS_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's only command-line argument, as JSON."""

    name: str  # engine, api-0, api-1, ...
    folder: str  # private to this service: the engine's socket and the metrics of all workers
    artifact: str  # its folder
    device: str  # selects the artifact in the folder
    plain: bool  # of an artifact for CUDA: whether its plain graph runs
    degraded: str  # why the CPU, or plain attention on the GPU, is used though there is a faster graph
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


def run_child(work: Callable[[WorkerSpec, Settings, Artifact], int]) -> NoReturn:
    """Runs `work`, then ends the process with the exit code that it returns, even where a thread still runs."""
    spec = msgspec.json.decode(sys.argv[1], type=WorkerSpec)
    threading.Thread(target=_end_with_supervisor, args=(spec,), daemon=True, name="lifeline").start()
    settings = Settings.from_environment()
    configure_logging(settings, process=spec.name)
    _store_metrics_in_files(spec.name)
    _write_pid(Path(spec.folder), spec.name)
    code = work(spec, settings, read_artifact(Path(spec.artifact), spec.device, plain=spec.plain))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _store_metrics_in_files(name: str) -> None:
    """In the folder of METRICS_DIR_VARIABLE, under the worker's name, so that a restarted worker continues the counts.
    Has to be called before the first Metrics is created."""
    from prometheus_client import values  # here, because it costs the supervisor 1.9 MiB

    values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]


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
