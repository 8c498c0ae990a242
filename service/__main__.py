"""`packbert serve`: reads the settings, finds or makes an artifact and serves it; SIGTERM drains, exit code 0."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from packbert.model_export.artifact.cpu import use_one_heap
from packbert.service.address import ListenError, bind_address
from packbert.service.artifact import ManifestError
from packbert.service.engine.device import find_artifacts
from packbert.service.errors import DeviceError
from packbert.service.flags import in_flags, variables_of
from packbert.service.logs import configure_logging
from packbert.service.model_cache import ModelError
from packbert.service.observability.start import check_packages
from packbert.service.prepare import ModelUnavailable
from packbert.service.settings import Settings, SettingsError, set_variables

if TYPE_CHECKING:
    from packbert.service.backend import Backend
    from packbert.service.http.starting import Starting


class Stopped(BaseException):
    """A signal arrived before the service answers."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 0 if number == signal.SIGTERM else 130


def main(words: Sequence[str] = ()) -> int:
    """The exit code: 2 where the settings, the model or the device cannot be used, 1 where the port is taken or the hub
    does not answer: that may pass."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first process of a container would ignore it
        signal.signal(number, _stop)
    try:
        return _start(words)
    except Stopped as stopped:
        print("packbert serve: stopped before it served; nothing half is left", file=sys.stderr)
        return stopped.code


def _start(words: Sequence[str]) -> int:
    """As `main`. Raises Stopped."""
    given = variables_of(words)
    set_variables(given)
    try:
        settings = Settings.from_environment()
        check_packages(settings)
        sockets = bind_address(settings.host, settings.port, "BERT_PORT")
        if settings.admin_port:
            sockets += bind_address(settings.host, settings.admin_port, "BERT_ADMIN_PORT")
        configure_logging(settings)
        if settings.can_swap:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until a process serves: it would end this one
            use_one_heap()
        return (_supervise if settings.api_processes else _serve)(settings, sockets)
    except (ListenError, SettingsError, ManifestError, DeviceError, ModelError) as error:
        print(f"packbert serve: {in_flags(str(error), given)}", file=sys.stderr)
        return 1 if isinstance(error, ListenError | ModelUnavailable) else 2


def _stop(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
    raise Stopped(number)


def _serve(settings: Settings, sockets: Sequence[socket.socket]) -> int:
    """HTTP and the models in this process."""
    from packbert.service.http.server import Server, freeze_libraries, run
    from packbert.service.observability.metrics import Metrics

    metrics = Metrics()

    def make(starting: "Starting") -> "Backend":
        choices = find_artifacts(settings.of_each_model(), starting.prepare)
        from packbert.service.engine.local_backend import make_backend

        freeze_libraries()
        return make_backend(settings, choices, metrics)

    server = Server(settings, metrics, lambda starting: asyncio.to_thread(make, starting))
    code = run(server, sockets)
    if server.backend is None and code != 1:
        raise Stopped(signal.SIGINT if code else signal.SIGTERM)
    return code


def _supervise(settings: Settings, sockets: Sequence[socket.socket]) -> int:
    """HTTP and the models in processes that this one starts: it imports neither ONNX Runtime nor FastAPI."""
    from packbert.service.workers.supervisor import supervise

    for probe in sockets:  # each API worker has one of its own
        probe.close()
    choices = find_artifacts(settings.of_each_model())
    return supervise(settings, [one.artifact for one in choices], degraded=choices[0].degraded)


def run_bulk(words: Sequence[str]) -> NoReturn:
    """`packbert bulk`."""
    from packbert.service.library.bulk_command import main as answer_file

    _end(answer_file(words))


def run(words: Sequence[str]) -> NoReturn:
    """`packbert serve`."""
    _end(main(words))


def _end(code: int) -> NoReturn:
    """Ends the process at once, so that a run that hangs cannot keep it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run(sys.argv[1:])
