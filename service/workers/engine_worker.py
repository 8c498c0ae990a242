"""The engine process, and its connection to each API worker."""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from packbert.model_export.artifact.batch import Tokens
from packbert.service.artifact import Artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.errors import Overloaded, ServiceError
from packbert.service.observability import Metrics
from packbert.service.observability.start import start_tracing
from packbert.service.scheduling.request import InferenceResult, RequestInParts
from packbert.service.settings import Settings
from packbert.service.trace_context import TRACEPARENT
from packbert.service.workers import messages
from packbert.service.workers.child import LOAD_FAILED, WorkerSpec, metrics_dir, run_child, send_heartbeats
from packbert.service.workers.messages import MessageWriter, decode_sequences, encode_rows

MAX_UNREAD_BYTES = 512 * 2**20  # of results that an API worker has not read; beyond it the connection is dropped
FLUSH_SECONDS = 1.0  # for the last results, when the engine ends
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class ApiConnection:
    """One connection to the engine's socket, normally of an API worker."""

    engine: ModelEngine
    writer: MessageWriter
    _running: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)
    _in_parts: dict[int, RequestInParts] = field(default_factory=dict)  # those of them that have a Begin
    _reported_full: bool = False  # the API worker may reject requests by itself only after it has heard so

    def __repr__(self) -> str:
        return f"<ApiConnection {len(self._running)} requests>"

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until the connection ends; then its pending requests are cancelled. Raises as `read_message` does."""
        try:
            await messages.read_hello(reader, messages.FROM_API)
            self.writer.send(messages.Hello(messages.VERSION, self.engine.artifact.digest))
            while True:
                self._handle(await messages.read_message(reader, messages.FROM_API))
        finally:
            for request in self._in_parts.values():
                request.withdraw()
            for task in self._running.values():
                task.cancel()

    async def close(self) -> None:
        """Closes the connection when the last result has been read, or after FLUSH_SECONDS."""
        self.writer.flush()
        stream = self.writer.stream
        stream.close()
        try:
            await asyncio.wait_for(stream.wait_closed(), FLUSH_SECONDS)
        except (OSError, TimeoutError):
            log.warning("an API worker did not read its last results")

    def _handle(self, message: messages.FromApi) -> None:
        if isinstance(message, messages.Submit):
            work = decode_sequences(message.sequences)
            self._run(message.request_id, sum(map(len, work)), partial(self._submit, message, work))
        elif isinstance(message, messages.Begin):
            self._begin(message)
        elif isinstance(message, messages.Append):
            if message.request_id in self._in_parts:  # otherwise it has ended
                work = decode_sequences(message.sequences)
                self._in_parts[message.request_id].append(work, message.reserved)
        elif isinstance(message, messages.Cancel):
            self._cancel(message.request_id)
        elif isinstance(message, messages.RejectedLocally):
            if not self._reported_full:
                raise messages.ProtocolError("rejections although the queue was not full")
            self.engine.batcher.counts.refuse(message.requests)
        elif isinstance(message, messages.Query):
            self._send(messages.QueryReply(message.query_id, self._reply_to(message.topic)))
        else:
            raise messages.ProtocolError("a second hello")

    def _cancel(self, request_id: int) -> None:
        """Does nothing where the request has ended."""
        if request_id in self._in_parts:
            self._in_parts[request_id].withdraw()
        elif request_id in self._running:
            self._running[request_id].cancel()

    def _begin(self, message: messages.Begin) -> None:
        """Admits a request whose sequences come later, or refuses it."""
        request_id, tokens = message.request_id, message.tokens
        try:
            self.engine.check_open()
            TRACEPARENT.set(message.trace)
            request = self.engine.batcher.begin(
                message.sequences, tokens, timeout_seconds=message.deadline - time.monotonic()
            )
        except ServiceError as error:
            self._send_error(request_id, tokens, error)
        else:
            self._in_parts[request_id] = request
            self._run(request_id, tokens, request.finish)

    def _run(self, request_id: int, tokens: int, finish: Callable[[], Awaitable[InferenceResult]]) -> None:
        """Until it ends; a task that is cancelled before its first step runs no `finally`."""
        task = self._running[request_id] = asyncio.create_task(self._answer(request_id, tokens, finish))
        task.add_done_callback(lambda _: self._forget(request_id))

    def _forget(self, request_id: int) -> None:
        del self._running[request_id]
        self._in_parts.pop(request_id, None)

    async def _submit(self, message: messages.Submit, work: Sequence[Tokens]) -> InferenceResult:
        self.engine.check_open()
        TRACEPARENT.set(message.trace)  # in the context of this task
        return await self.engine.batcher.submit(work, timeout_seconds=message.deadline - time.monotonic())

    async def _answer(self, request_id: int, tokens: int, finish: Callable[[], Awaitable[InferenceResult]]) -> None:
        try:
            result = await finish()
            blocks = encode_rows(result.rows)
            self._send(messages.Result(request_id, result.forward_seconds, len(result.rows), blocks))
        except ServiceError as error:
            self._send_error(request_id, tokens, error)

    def _send_error(self, request_id: int, tokens: int, error: ServiceError) -> None:
        full = type(error) is Overloaded  # whatever its deadline; DeadlineTooShort says nothing of other requests
        self._reported_full |= full
        rejected = tokens if full else 0
        self._send(messages.to_error_reply(request_id, error, min_rejected_tokens=rejected))

    def _reply_to(self, topic: messages.Topic) -> bytes:
        if topic == "ready":
            return self.engine.readiness().encode()
        return orjson.dumps(self.engine.info()) if topic == "info" else self.engine.metrics.queue_text()

    def _send(self, message: messages.Message) -> None:
        self.writer.send(message)
        if self.writer.unread_bytes > MAX_UNREAD_BYTES:
            log.error("dropping a connection that does not read its results: %r", self)
            self.writer.stream.transport.abort()


READ_AHEAD_BYTES = 2**20
# the socket's file has to stay, because the replacement accepts on it too
KEEP_SOCKET_FILE: Mapping[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


@dataclass(slots=True, eq=False)
class EngineWorker:
    """Accepts connections of API workers; `run` returns after a signal or a failure."""

    engine: ModelEngine
    heartbeat: int  # write end of the pipe
    _connections: set[ApiConnection] = field(default_factory=set)
    _end: asyncio.Event = field(default_factory=asyncio.Event)
    _heartbeats: "asyncio.Task[None] | None" = None
    _code: int = 0

    async def run(self, listener: socket.socket) -> int:
        """The exit code."""
        loop = asyncio.get_running_loop()
        self.engine.on_fatal = lambda: self._finish(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._finish, 0)
        server = await asyncio.start_unix_server(
            self._on_connect, sock=listener, limit=READ_AHEAD_BYTES, **KEEP_SOCKET_FILE
        )
        loading = asyncio.create_task(self._load())
        await self._end.wait()
        server.close()
        loading.cancel()
        await self.engine.close()
        await asyncio.gather(*(connection.close() for connection in self._connections))
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        return self._code

    async def _load(self) -> None:
        try:
            await self.engine.open()
        except Exception:
            log.exception("the model cannot be loaded")
            self._finish(LOAD_FAILED)
        else:
            self._heartbeats = asyncio.create_task(send_heartbeats(self.heartbeat))

    def _finish(self, code: int) -> None:
        self._code = self._code or code
        self._end.set()

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ApiConnection(self.engine, MessageWriter(writer))
        self._connections.add(connection)
        try:
            await connection.serve(reader)
        except (OSError, asyncio.IncompleteReadError):
            log.info("an API worker has disconnected: %r", connection)
        except messages.ProtocolError as error:
            log.error("dropping a connection that sent %s", error)
        finally:
            self._connections.discard(connection)
            writer.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed, as in uvicorn: the engine's own work for a single text takes 21 us, not 25."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def work(spec: WorkerSpec, settings: Settings, artifact: Artifact) -> int:
    metrics = Metrics(spec.name, metrics_dir(Path(spec.folder)))
    engine = ModelEngine(artifact, settings, metrics, degraded=spec.degraded, tracing=start_tracing(settings))
    # never closed: that would wait for a thread that still loads, or for a run that hangs
    runner = asyncio.Runner(loop_factory=new_loop)
    code = runner.run(EngineWorker(engine, spec.heartbeat).run(socket.socket(fileno=spec.listener)))
    if engine.tracing is not None:
        engine.tracing.close()
    return code


if __name__ == "__main__":
    run_child(work)
