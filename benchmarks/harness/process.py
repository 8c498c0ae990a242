"""Runs the service, or another server, as a process of its own on a free port of 127.0.0.1."""

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
from pathlib import Path
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


def reserve_port() -> socket.socket:
    """A socket that holds a free port: a server can listen there, and the system gives it to no other process."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server's: two such sockets share a port
    reserved.bind(("127.0.0.1", 0))
    return reserved


def memory_mib(process: int) -> dict[str, float]:
    """MiB of a process by the names of Linux: Rss, Pss, Pss_Anon and others."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text("utf-8").splitlines()[1:]
    return {name: int(size.split()[0]) / 1024 for name, size in (line.split(":") for line in lines)}


def resident_mib(process: int, *, children: bool = False, peak: bool = False) -> float:
    """Resident MiB of a process, and of its children: at the moment, or the most since the start of each."""
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split() if children else []
    lines = [line for one in (process, *listed) for line in Path(f"/proc/{one}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:" if peak else "VmRSS:"))


class ServiceProcess:
    """`python -m MODULE`, listening on BERT_PORT; `with` starts it, waits until it is ready, and kills it."""

    def __init__(
        self, settings: Mapping[str, str], *, module: str = "packbert.service", ready_seconds: float = READY_SECONDS
    ) -> None:
        self._module, self._ready_seconds = module, ready_seconds
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("BERT_", "OTEL_"))}
        self._environment = clean | dict(settings) | {"BERT_PORT": str(self.port)}
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - an unread pipe would fill and block the server

    def start(self) -> None:
        """Starts the process without waiting until it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", self._module], env=self._environment, stdout=self._output, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> Self:
        """Raises TimeoutError if it is not ready in time; if it has ended by itself, `process.returncode` is set."""
        self.start()
        end = time.monotonic() + self._ready_seconds
        while self.process.poll() is None and not self._is_ready():
            if time.monotonic() > end:
                self.process.kill()
                output = self.output()
                self.close()
                raise TimeoutError(f"{self._module} is not ready after {self._ready_seconds} s: {output}")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PAUSE_SECONDS)
        return self

    def _is_ready(self) -> bool:
        """Uses only the standard library: benchmarks also run where no test dependency is installed."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def terminate(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_SECONDS)

    def output(self) -> str:
        """What the process has written to stdout and stderr so far."""
        file = self._output.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()  # does not move the server's position

    def close(self) -> None:
        """Discards the output, and gives the port back."""
        self._output.close()
        self._reserved.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """By SIGKILL: a server that leaves in order lingers for 1.5 s; the workers of a killed supervisor end too."""
        self.process.kill()
        self.process.wait()
        self.close()
