"""`packbert serve`: reads the settings, finds or makes an artifact and serves it; SIGTERM drains, exit code 0."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from packbert.model_export.artifact.cpu import use_one_heap

from .address import ListenError, bind_address
from .artifact import ManifestError
from .engine.device import find_artifacts
from .errors import DeviceError
from .flags import in_flags, variables_of
from .logs import configure_logging
from .model_cache import ModelError
from .prepare import ModelUnavailable
from .settings import Settings, SettingsError, set_variables
from .workers.channel import WORKER

if TYPE_CHECKING:
    from .http.server import Starting
    from .models import Models
    from .workers.worker import Membership


class Stopped(BaseException):
    """A signal arrived before the service answers."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 0 if number == signal.SIGTERM else 130


def main(words: Sequence[str] = ()) -> int:
    """The exit code: 2 if the settings, the model or the device cannot be used, 1 if the port is taken or the hub does
    not answer: that may pass."""
    if words and words[0] == WORKER:
        return _serve_as_worker(words[1])
    given = variables_of(words)

    def report(fault: str) -> None:
        print(f"packbert serve: {in_flags(fault, given)}", file=sys.stderr)

    def start() -> int:
        set_variables(given)
        settings = Settings.from_environment()
        sockets = bind_address(settings.host, settings.port, "BERT_PORT")
        if settings.admin_port:
            sockets += bind_address(settings.host, settings.admin_port, "BERT_ADMIN_PORT")
        configure_logging(settings)
        if settings.can_swap:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until a process serves: it would end this process
        if settings.workers == 1:
            return _serve(settings, sockets)
        from .workers.supervisor import Supervisor

        return asyncio.run(Supervisor(settings, sockets, report).run())

    return _guard(start, report)


def _serve_as_worker(argument: str) -> int:
    from .workers.worker import begin_worker

    settings, member = begin_worker(argument)
    return _guard(lambda: _serve(settings, [member.listener], member), lambda fault: member.channel.tell(fault=fault))


def _guard(start: Callable[[], int], report: Callable[[str], None]) -> int:
    """The exit code of `start`, whose errors are reported. A signal ends it until a server handles signals."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first process of a container would ignore it
        signal.signal(number, _stop)
    try:
        return start()
    except (Stopped, ImportError) as error:
        # a module in C that a signal interrupts while it is imported raises ImportError
        stopped = error if isinstance(error, Stopped) else error.__cause__
        if not isinstance(stopped, Stopped):
            raise
        report("stopped before it served; nothing half is left")
        return stopped.code
    except (ListenError, SettingsError, ManifestError, DeviceError, ModelError) as error:
        report(str(error))
        return 1 if isinstance(error, ListenError | ModelUnavailable) else 2


def _stop(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
    raise Stopped(number)


def _serve(settings: Settings, listeners: Sequence[socket.socket], member: "Membership | None" = None) -> int:
    """HTTP and the models in this process."""
    from .http.server import Server, run
    from .observability.metrics import Metrics

    if settings.can_swap:
        use_one_heap()
    metrics = Metrics(member.name, member.counts) if member else Metrics()

    def make(starting: "Starting") -> "Models":
        swapped = member.models if member else {}
        artifacts = find_artifacts(settings.of_each_model(swapped), starting.prepare)
        from .models import make_models

        gc.collect()
        gc.freeze()  # later collections skip what the imports have made; a model that is frozen would stay
        return make_models(settings, artifacts, metrics)

    server = Server(settings, metrics, lambda starting: asyncio.to_thread(make, starting), member)
    code = run(server, listeners)
    if server.models is None and code != 1:
        raise Stopped(signal.SIGINT if code else signal.SIGTERM)
    return code


def end(code: int) -> NoReturn:
    """Ends the process at once, so that a run that hangs cannot keep it."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main(sys.argv[1:]))
