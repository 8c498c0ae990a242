"""`python -m service`: settings from the environment, an artifact, a server; SIGTERM drains, exit code 0."""

import logging
import os
import sys

from service.artifact import ManifestError
from service.engine.device import select_artifact
from service.engine.engine import Engine
from service.engine.session import DeviceError
from service.http.server import build, run
from service.metrics import Metrics
from service.settings import Settings, SettingsError
from service.workers.supervisor import supervise


def main() -> int:
    try:
        settings = Settings.from_environment()
        choice = select_artifact(settings.artifact, settings.device)
    except (SettingsError, ManifestError, DeviceError) as error:
        print(f"service: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if choice.degraded:
        logging.getLogger("service").warning(
            "DEGRADED: serving on the CPU, because the GPU cannot be used: %s", choice.degraded
        )
    if settings.api_processes:
        return supervise(settings, device=choice.artifact.manifest.device, degraded=choice.degraded)
    engine = Engine(choice.artifact, settings, Metrics(), degraded=choice.degraded)
    return run(build(settings, engine))


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everyone has been answered; a run that hangs must not keep the process from ending
