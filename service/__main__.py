"""`packbert serve`: reads the settings, finds or makes an artifact and serves it; SIGTERM drains, exit code 0."""

import logging
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from packbert.service.address import ListenError, bind_address, check_address
from packbert.service.artifact import ManifestError
from packbert.service.engine.device import ArtifactChoice, check_one_device, find_artifact
from packbert.service.errors import DeviceError
from packbert.service.flags import in_flags, variables_of
from packbert.service.logs import configure_logging
from packbert.service.model_cache import Cache, ModelError
from packbert.service.observability.start import check_packages
from packbert.service.prepare import ModelUnavailable, prepare_model
from packbert.service.preparing import answer_probes
from packbert.service.settings import Settings, SettingsError, named_models, set_variables


class Stopped(BaseException):
    """A signal arrived before the service listens."""

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
        check_address(settings.host, settings.port)
        if settings.admin_port:
            check_address(settings.host, settings.admin_port, "BERT_ADMIN_PORT")
        configure_logging(settings)
        if settings.can_swap:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until a process serves: it would end this one
        named = named_models(settings)
        one_each = [settings.of_model(name, one.model) for name, one in named.items()] or [settings]
        choices = [find_artifact(one, _prepare) for one in one_each]
        check_one_device(choices)
    except (ListenError, ModelUnavailable) as error:
        _report(error, given)
        return 1
    except (SettingsError, ManifestError, DeviceError, ModelError) as error:
        _report(error, given)
        return 2
    for choice in choices:
        _warn_of_device(choice)
    try:
        return (_supervise if settings.api_processes else _serve)(settings, choices)
    except (ManifestError, ListenError) as error:
        _report(error, given)
        return 1 if isinstance(error, ListenError) else 2


def _report(error: Exception, given: Collection[str]) -> None:
    print(f"packbert serve: {in_flags(str(error), given)}", file=sys.stderr)


def _warn_of_device(choice: ArtifactChoice) -> None:
    if choice.degraded:
        fault = "DEGRADED: serving on the CPU, because the GPU cannot be used: %s"
        logging.getLogger("service").warning(fault, choice.degraded)


def _prepare(settings: Settings, device: str) -> tuple[Path, Cache]:
    """As `prepare_model`."""
    with answer_probes(settings):
        return prepare_model(settings, device)


def _stop(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
    raise Stopped(number)


def _serve(settings: Settings, choices: Sequence[ArtifactChoice]) -> int:
    """HTTP and the models in this process."""
    from packbert.service.engine.local_backend import make_backend
    from packbert.service.http.server import build, run

    sockets = bind_address(settings.host, settings.port, "BERT_PORT")
    if settings.admin_port:
        sockets += bind_address(settings.host, settings.admin_port, "BERT_ADMIN_PORT")
    return run(build(settings, make_backend(settings, choices)), sockets)


def _supervise(settings: Settings, choices: Sequence[ArtifactChoice]) -> int:
    """HTTP and the model in processes that this one starts: it imports neither ONNX Runtime nor FastAPI."""
    from packbert.service.workers.supervisor import supervise

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
