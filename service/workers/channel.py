"""What a supervisor and its worker say to each other: JSON lines over a pair of sockets, and connections over another.

A worker says every BEAT_SECONDS how many connections it has. Either side ends the worker when the other has ended.
"""

import json
import socket
from dataclasses import dataclass, field
from typing import Any

BEAT_SECONDS = 0.1
WORKER = "--worker"  # of `packbert serve`: the next word is a WorkerSpec
SwappedModels = dict[str, tuple[str, str]]  # the artifact's folder and the source of each name that was swapped


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker's only command-line argument, as JSON."""

    name: str  # worker-0, worker-1, ...
    address: tuple[str, int]  # of the service
    channel: int  # file descriptor of the socket for the lines
    connections: int  # file descriptor of the socket that the accepted connections come from
    counts: dict[str, tuple[int, int]]  # file descriptors of the numbers and labels that each worker counts
    models: SwappedModels = field(default_factory=dict)
    threads: int  # of one run, where BERT_THREADS does not say it
    cores: list[int]  # that the worker runs on; empty: on any


def encode(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


@dataclass(slots=True, eq=False)
class HandedConnections:
    """A worker's listening socket: accepts what the supervisor has accepted, and has handed to this worker."""

    handed: socket.socket
    address: tuple[str, int]

    def fileno(self) -> int:
        return self.handed.fileno()

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def listen(self, _: int) -> None:
        """The supervisor listens."""

    def setblocking(self, flag: bool) -> None:
        self.handed.setblocking(flag)

    def accept(self) -> tuple[socket.socket, None]:
        """Raises BlockingIOError where no connection waits, and OSError where no descriptor is free."""
        return take_connection(self.handed), None

    def close(self) -> None:
        self.handed.close()


def hand_connection(connection: socket.socket, to: socket.socket) -> None:
    """Raises BlockingIOError where the worker has not taken the earlier ones."""
    socket.send_fds(to, [b"c"], [connection.fileno()])


def take_connection(handed: socket.socket) -> socket.socket:
    """Raises BlockingIOError where no connection waits, and OSError where no descriptor is free."""
    _, descriptors, _, _ = socket.recv_fds(handed, 1, 1)
    if not descriptors:
        raise OSError("the connection could not be taken over")
    return socket.socket(fileno=descriptors[0])
