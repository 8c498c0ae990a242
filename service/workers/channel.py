"""What a supervisor and its worker say to each other: JSON lines over a pair of sockets, and connections over another.

A worker says every BEAT_SECONDS how many connections it has. Either side ends the worker when the other has ended.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

BEAT_SECONDS = 0.1
WORKER = "--worker"  # of `packbert serve`: the next word is a WorkerSpec
SwappedModels = dict[str, tuple[str, str]]  # the artifact's folder and the source of each name that was swapped


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker's only command-line argument, as JSON."""

    name: str  # worker-0, worker-1, ...
    address: list[Any]  # host and port of the service
    channel: int  # file descriptor of the socket for the lines
    connections: int  # file descriptor of the socket that the accepted connections come from
    counts: dict[str, tuple[int, int]]  # file descriptors of the numbers and labels that each worker counts
    models: SwappedModels
    cores: list[int]  # that the worker runs on; empty: on any


@dataclass(slots=True, eq=False)
class Channel:
    """One side of the lines: what it tells the other side, and the answers that it waits for."""

    send: Callable[[bytes], object] | None = None  # None while there is no other side
    _awaited: dict[str, asyncio.Future[Any]] = field(default_factory=dict)  # answers by their kinds

    def tell(self, **message: Any) -> None:
        if self.send is not None:
            self.send(json.dumps(message).encode() + b"\n")

    async def ask(self, kind: str, **message: Any) -> Any:
        """The answer of this kind, which several may wait for; None if the other side ends before it."""
        if kind not in self._awaited:
            self._awaited[kind] = asyncio.get_running_loop().create_future()
            self.tell(**message)
        return await asyncio.shield(self._awaited[kind])

    def read(self, line: bytes) -> Iterator[tuple[str, Any]]:
        """The kinds and values that the other side tells, but for the answers that `ask` waits for."""
        for kind, value in json.loads(line).items():
            if kind in self._awaited:
                self._awaited.pop(kind).set_result(value)
            else:
                yield kind, value

    def end(self) -> None:
        """The other side has ended."""
        self.send = None
        for answer in self._awaited.values():
            answer.set_result(None)
        self._awaited.clear()


class HandedConnections(socket.socket):
    """A worker's listening socket: accepts the connections that the supervisor has handed to the worker."""

    def __init__(self, descriptor: int, address: list[Any]) -> None:
        super().__init__(fileno=descriptor)
        self._address = address

    def getsockname(self) -> list[Any]:
        return self._address

    def listen(self, _: int = 0, /) -> None:
        """The supervisor listens."""

    def accept(self) -> tuple[socket.socket, None]:
        """Raises what `take_connection` raises."""
        return take_connection(self), None


def take_connection(handed: socket.socket) -> socket.socket:
    """Raises BlockingIOError if no connection waits, and OSError if no descriptor is free."""
    _, descriptors, _, _ = socket.recv_fds(handed, 1, 1, socket.MSG_DONTWAIT)
    if not descriptors:
        raise OSError("the connection could not be taken over")
    return socket.socket(fileno=descriptors[0])
