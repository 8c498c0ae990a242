"""`python -m service`: reads the settings, opens an artifact and serves it; SIGTERM drains, exit code 0."""

import logging
import os
import sys
from typing import NoReturn

from service.artifact import ManifestError
from service.engine.device import ArtifactChoice, select_artifact
from service.errors import DeviceError
from service.listening import ListenError, bind_address, check_address
from service.logs import configure_logging
from service.settings import Settings, SettingsError
from service.tasks.defaults import describe_defaults
from service.tokenization.tokenizer_check import StartedCheck
from service.tracing.start import check_packages


def main() -> int:
    """The exit code: 2 where the settings, the artifact or the device cannot be used, 1 where the port is taken."""
    try:
        settings = Settings.from_environment()
        check_packages(settings)
        check_address(settings.host, settings.port)
        if settings.admin_port:
            check_address(settings.host, settings.admin_port, "BERT_ADMIN_PORT")
        choice = select_artifact(settings.artifact, settings.device)
        defaults = describe_defaults(choice.artifact.manifest, settings)
    except (SettingsError, ManifestError, DeviceError) as error:
        print(f"service: {error}", file=sys.stderr)
        return 2
    except ListenError as error:
        print(f"service: {error}", file=sys.stderr)
        return 1
    configure_logging(settings)
    logging.getLogger("service").info(defaults)
    if choice.degraded:
        message = "DEGRADED: serving on the CPU, because the GPU cannot be used: %s"
        logging.getLogger("service").warning(message, choice.degraded)
    check = StartedCheck(choice.artifact)
    try:
        return (_supervise if settings.api_processes else _serve)(settings, choice, check)
    except (ManifestError, ListenError) as error:
        print(f"service: {error}", file=sys.stderr)
        return 1 if isinstance(error, ListenError) else 2


def _serve(settings: Settings, choice: ArtifactChoice, check: StartedCheck) -> int:
    """HTTP and the model in this process; their import runs beside the check of the tokenizer."""
    from service.engine.local_backend import LocalBackend
    from service.http.server import build, run
    from service.metrics import Metrics

    check.finish()
    sockets = None  # uvicorn listens by itself, on one port
    if settings.admin_port:
        admin_sockets = bind_address(settings.host, settings.admin_port, "BERT_ADMIN_PORT")
        sockets = [*bind_address(settings.host, settings.port, "BERT_PORT"), *admin_sockets]
        ports = settings.host, settings.port, settings.admin_port
        logging.getLogger("service").info("serving on http://%s:%d; /metrics, /info and /docs are on port %d", *ports)
    server = build(settings, LocalBackend(choice.artifact, settings, Metrics(), degraded=choice.degraded))
    return run(server, sockets)


def _supervise(settings: Settings, choice: ArtifactChoice, check: StartedCheck) -> int:
    """HTTP and the model in processes that this one starts: it imports neither ONNX Runtime nor FastAPI."""
    from service.workers.supervisor import supervise

    check.finish()
    return supervise(settings, device=choice.artifact.manifest.device, degraded=choice.degraded)


def _answer_file() -> int:
    """`bert-service bulk`."""
    from service.library.command import main as answer_file

    return answer_file(sys.argv[2:])


def run() -> NoReturn:
    """The command `bert-service`: ends the process at once, so that a run that hangs cannot keep it."""
    code = _answer_file() if sys.argv[1:2] == ["bulk"] else main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
