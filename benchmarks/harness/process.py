"""A server as a process of its own, on a free port of this machine: the service, or one that benchmarks set beside it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection
from types import TracebackType
from typing import Self

START_SECONDS = 60
READY_SECONDS = 300
PAUSE_SECONDS = 0.05


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServiceProcess:
    """`python -m MODULE`, which listens on BERT_PORT: started and ready inside the `with`, ended by SIGTERM after it."""

    def __init__(
        self, settings: Mapping[str, str], *, module: str = "service", ready_seconds: float = READY_SECONDS
    ) -> None:
        self.port, self._module, self._ready_seconds = free_port(), module, ready_seconds
        self.url = f"http://127.0.0.1:{self.port}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("BERT_")}
        self._environment = clean | dict(settings) | {"BERT_PORT": str(self.port)}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would fill, and hold up whoever writes

    def start(self) -> None:
        """Not ready yet."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", self._module], env=self._environment, stdout=self._said, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> Self:
        """Raises TimeoutError where it is not ready in time; one that ends by itself has an exit code."""
        self.start()
        end = time.monotonic() + self._ready_seconds
        while self.process.poll() is None and not self._is_ready():
            if time.monotonic() > end:
                self.process.kill()
                said = self.output()
                self.close()
                raise TimeoutError(f"{self._module} is not ready after {self._ready_seconds} s: {said}")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PAUSE_SECONDS)
        return self

    def _is_ready(self) -> bool:
        """With nothing but the standard library: benchmarks start the service where no test dependency is installed."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_SECONDS)

    def output(self) -> str:
        """What it has said so far."""
        return os.pread(
            self._said.fileno(), os.fstat(self._said.fileno()).st_size, 0
        ).decode()  # the place where it writes stays its own

    def close(self) -> None:
        """Its words are gone."""
        self._said.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.terminate()
        self.close()
