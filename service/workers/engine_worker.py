"""The engine as a process of its own: requests of all API processes join one line; answers that are ready together leave together.

Knows connections and an engine; knows nothing of HTTP or texts.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from service.artifact import Artifact
from service.engine.engine import ModelEngine
from service.errors import Overloaded, ServiceError, TooLarge
from service.metrics import Metrics
from service.settings import Settings
from service.workers.child import LOAD_FAILED, WorkerSpec, run_child
from service.workers.codec import (
    ModelBounds,
    RemoteRequest,
    RemoteResult,
    chunk_by_bytes,
    decode_requests,
    encode_results,
)
from service.workers.heartbeat import send_heartbeats
from service.workers.messages import (
    MAX_HELLO_BYTES,
    VERSION,
    Cancel,
    FromApi,
    Hello,
    ProtocolError,
    Query,
    QueryReply,
    RejectedLocally,
    SubmitBatch,
    Welcome,
    frame,
    read_from_api,
    refusal,
)

READ_BYTES = 2**20  # that are read ahead
MAX_UNREAD_BYTES = 512 * 2**20  # of answers that an API process has not taken: it is not worth waiting for
FLUSH_SECONDS = 1.0  # for the last answers, when the engine ends
KEPT: Mapping[str, Any] = (
    {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
)  # the socket's file: the successor accepts on it too
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class ApiConnection:
    """One API process, or whoever else has connected, as the engine sees it."""

    engine: ModelEngine
    bounds: ModelBounds
    writer: asyncio.StreamWriter
    _running: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)
    _outbox: list[RemoteResult] = field(default_factory=list)
    _was_full: bool = False  # it has been told so

    def __repr__(self) -> str:
        return f"<Peer {len(self._running)} requests>"

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until it leaves; then what it still waits for leaves the line. Raises WireError where it does not speak as an API process does."""
        try:
            hello = await read_from_api(reader, limit=MAX_HELLO_BYTES)
            if not isinstance(hello, Hello) or hello.version != VERSION:
                raise ProtocolError("no hello")
            self.writer.write(frame(Welcome(VERSION, self.engine.artifact.digest)))
            while True:
                self._take(await read_from_api(reader))
        finally:
            for task in self._running.values():
                task.cancel()

    async def leave(self) -> None:
        """Ends the connection when the last answer has been taken, or will not be."""
        self._send()
        self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), FLUSH_SECONDS)
        except (OSError, TimeoutError):
            log.warning("an API process did not take its last answers")

    def _take(self, said: FromApi) -> None:
        if isinstance(said, SubmitBatch):
            for parcel in decode_requests(said, self.bounds):
                if parcel.number in self._running:
                    raise ProtocolError("a request with a number that is in use")
                self._running[parcel.number] = asyncio.create_task(self._answer(parcel))
        elif isinstance(said, Cancel):
            if said.number in self._running:
                self._running[said.number].cancel()
        elif isinstance(said, RejectedLocally):
            if not self._was_full:
                raise ProtocolError("refusals for a line that was not full")
            self.engine.batcher.counts.refuse(said.requests)
        elif isinstance(said, Query):
            self._write(frame(QueryReply(said.number, self._told(said.about))))
        else:
            raise ProtocolError("a second hello")

    async def _answer(self, parcel: RemoteRequest) -> None:
        try:
            self.engine.check_open()
            answer = await self.engine.batcher.submit(parcel.work, timeout_seconds=parcel.deadline - time.monotonic())
        except ServiceError as error:
            self._write(
                frame(
                    refusal(
                        parcel.number, error, full_for=self._full_for(parcel) if isinstance(error, Overloaded) else 0
                    )
                )
            )
        else:
            self._put(RemoteResult(number=parcel.number, rows=answer.rows, forward_seconds=answer.forward_seconds))
        finally:
            del self._running[parcel.number]

    def _full_for(self, parcel: RemoteRequest) -> int:
        """The tokens of `parcel`, where they would be refused whatever its deadline; 0 where not."""
        try:
            self.engine.batcher.queue.check_admission(parcel.tokens)
        except Overloaded:
            self._was_full = True
            return parcel.tokens
        return 0

    def _told(self, about: str) -> bytes:
        if about == "ready":
            return self.engine.readiness().encode()
        return orjson.dumps(self.engine.info()) if about == "info" else self.engine.metrics.queue_text()

    def _put(self, reply: RemoteResult) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send)
        self._outbox.append(reply)

    def _send(self) -> None:
        replies, self._outbox = self._outbox, []
        for together in chunk_by_bytes(replies):
            try:
                self._write(frame(encode_results(together)))
            except TooLarge as error:
                for reply in together:
                    self._write(frame(refusal(reply.number, error)))

    def _write(self, message: bytes) -> None:
        self.writer.write(message)
        if self.writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            log.error("%r does not take its answers: it is dropped", self)
            self.writer.transport.abort()


@dataclass(slots=True, eq=False)
class EngineWorker:
    """`run` until a signal or a failure ends it."""

    engine: ModelEngine
    pulse: int  # tells the supervisor that the loop turns
    _peers: set[ApiConnection] = field(default_factory=set)
    _connections: set["asyncio.Task[None]"] = field(default_factory=set)
    _end: asyncio.Event = field(default_factory=asyncio.Event)
    _beating: "asyncio.Task[None] | None" = None
    _code: int = 0

    async def run(self, listener: socket.socket) -> int:
        """The exit code."""
        loop = asyncio.get_running_loop()
        self.engine.on_fatal = lambda: self._finish(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._finish, 0)
        server = await asyncio.start_unix_server(self._connected, sock=listener, limit=READ_BYTES, **KEPT)
        loading = asyncio.create_task(self._load())
        await self._end.wait()
        server.close()
        loading.cancel()
        await self.engine.close()
        await asyncio.gather(*(peer.leave() for peer in self._peers))
        if self._beating is not None:
            self._beating.cancel()
        return self._code

    async def _load(self) -> None:
        try:
            await self.engine.open()
        except Exception:
            log.exception("the model cannot be loaded")
            self._finish(LOAD_FAILED)
        else:
            self._beating = asyncio.create_task(send_heartbeats(self.pulse))

    def _finish(self, code: int) -> None:
        self._code = self._code or code
        self._end.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        manifest = self.engine.artifact.manifest
        sizes = manifest.sizes
        bounds = ModelBounds(vocabulary=sizes["vocabulary"], segments=sizes["segments"], max_tokens=manifest.max_tokens)
        peer = ApiConnection(self.engine, bounds, writer)
        self._peers.add(peer)
        try:
            await peer.serve(reader)
        except (OSError, asyncio.IncompleteReadError):
            log.info("an API process has left: %r", peer)
        except ProtocolError as error:
            log.error("a connection sent %s: it is dropped, and nobody else is concerned", error)
        finally:
            self._peers.discard(peer)
            writer.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where there is one for this platform, as uvicorn does: a single text costs the engine 21 us of its own work in place of 25."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def work(post: WorkerSpec, settings: Settings, artifact: Artifact) -> int:
    engine = ModelEngine(artifact, settings, Metrics(), degraded=post.degraded)
    runner = asyncio.Runner(
        loop_factory=new_loop
    )  # never closed: that would wait for a thread that still loads, or a run that hangs
    return runner.run(EngineWorker(engine, post.pulse).run(socket.socket(fileno=post.listener)))


if __name__ == "__main__":
    run_child(work)
