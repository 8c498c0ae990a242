"""`python -m service`: settings from the environment, an artifact, a server; SIGTERM drains, exit code 0."""

import asyncio
import logging
import signal
import sys
from types import FrameType

import uvicorn

from service.app import create_app
from service.artifact import ManifestError
from service.device import choose
from service.engine import Engine
from service.metrics import Metrics
from service.session import DeviceError
from service.settings import Settings, SettingsError

GRACE_SECONDS = 5  # after the drain, for the last answers to reach their callers


class Server(uvicorn.Server):
    """uvicorn, which also tells the engine when the end is near."""

    engine: Engine
    settings: Settings
    failed = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.engine.drain()
        asyncio.get_running_loop().call_later(self.settings.drain_seconds, self.engine.give_up)
        super().handle_exit(sig, frame)

    def fail(self) -> None:
        self.failed = self.should_exit = True


def main() -> int:
    try:
        settings = Settings.from_environment()
        choice = choose(settings.artifact, settings.device)
    except (SettingsError, ManifestError, DeviceError) as error:
        print(f"service: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if choice.degraded:
        logging.getLogger("service").warning("DEGRADED: serving on the CPU, because the GPU cannot be used: %s", choice.degraded)
    engine = Engine(choice.artifact, settings, Metrics(), choice.degraded)
    config = uvicorn.Config(
        lambda: create_app(engine, on_failure=server_failed),
        factory=True,
        host=settings.host,
        port=settings.port,
        http="httptools",  # refuses smuggled and folded headers that h11 lets through
        log_level=settings.log_level,
        access_log=False,
        timeout_graceful_shutdown=int(settings.drain_seconds) + GRACE_SECONDS,
        date_header=False,
        server_header=False,
    )
    server = Server(config)
    server.engine, server.settings = engine, settings

    def server_failed() -> None:
        server.fail()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # uvicorn raises the signal again when it is done: by then the work is over, and the exit code is 0
    server.run()
    return 1 if server.failed or not server.started else 0


if __name__ == "__main__":
    sys.exit(main())
