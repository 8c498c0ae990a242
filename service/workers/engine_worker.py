"""The engine process, and its connection to each API worker."""

import asyncio
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from packbert.model_export.artifact.manifest import ModelBounds
from packbert.service.artifact import Artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.errors import InferenceFailed, Overloaded, ServiceError, TooLarge
from packbert.service.observability import Metrics
from packbert.service.observability.start import start_tracing
from packbert.service.scheduling.request import InferenceResult, RequestInParts
from packbert.service.settings import Settings
from packbert.service.trace_context import TRACEPARENT
from packbert.service.workers import messages
from packbert.service.workers.child import LOAD_FAILED, WorkerSpec, run_child, send_heartbeats
from packbert.service.workers.messages import (
    RemoteRequest,
    RemoteResult,
    chunk_by_bytes,
    decode_requests,
    encode_results,
)

MAX_UNREAD_BYTES = 512 * 2**20  # of results that an API worker has not read; beyond it the connection is dropped
FLUSH_SECONDS = 1.0  # for the last results, when the engine ends
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class ApiConnection:
    """One connection to the engine's socket, normally of an API worker."""

    engine: ModelEngine
    bounds: ModelBounds
    writer: asyncio.StreamWriter
    _running: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)
    _in_parts: dict[int, RequestInParts] = field(default_factory=dict)  # those of them that have a Begin
    _outbox: list[RemoteResult] = field(default_factory=list)
    _reported_full: bool = False  # the API worker may reject requests by itself only after it has heard so

    def __repr__(self) -> str:
        return f"<ApiConnection {len(self._running)} requests>"

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until the connection ends; then its pending requests are cancelled. Raises as `read_message` does."""
        try:
            await messages.read_hello(reader, messages.FROM_API)
            self.writer.write(messages.frame(messages.Hello(messages.VERSION, self.engine.artifact.digest)))
            while True:
                self._handle(await messages.read_message(reader, messages.FROM_API))
        finally:
            for request in self._in_parts.values():
                request.withdraw()
            for task in self._running.values():
                task.cancel()

    async def close(self) -> None:
        """Closes the connection when the last result has been read, or after FLUSH_SECONDS."""
        self._flush()
        self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), FLUSH_SECONDS)
        except (OSError, TimeoutError):
            log.warning("an API worker did not read its last results")

    def _handle(self, message: messages.FromApi) -> None:
        if isinstance(message, messages.SubmitBatch):
            self._start(message)
        elif isinstance(message, messages.Begin):
            self._begin(message)
        elif isinstance(message, messages.Cancel):
            if message.request_id in self._in_parts:
                self._in_parts[message.request_id].withdraw()
            elif message.request_id in self._running:
                self._running[message.request_id].cancel()
        elif isinstance(message, messages.RejectedLocally):
            if not self._reported_full:
                raise messages.ProtocolError("rejections although the queue was not full")
            self.engine.batcher.counts.refuse(message.requests)
        elif isinstance(message, messages.Query):
            self._write(messages.frame(messages.QueryReply(message.query_id, self._reply_to(message.topic))))
        else:
            raise messages.ProtocolError("a second hello")

    def _begin(self, message: messages.Begin) -> None:
        """Admits a request whose sequences come later, or refuses it."""
        request_id, tokens = message.request_id, message.tokens
        if request_id in self._running or not math.isfinite(message.deadline):
            raise messages.ProtocolError("a request id that is in use, or a deadline that is not finite")
        try:
            self.engine.check_open()
            TRACEPARENT.set(message.trace)
            request = self.engine.batcher.begin(
                message.sequences, tokens, timeout_seconds=message.deadline - time.monotonic()
            )
        except ServiceError as error:
            self._write_error(request_id, tokens, error)
        else:
            self._in_parts[request_id] = request
            self._run(request_id, self._answer(request_id, tokens, request.finish))

    def _start(self, message: messages.SubmitBatch) -> None:
        """Starts the requests of a message, or refuses all of them: the others of this connection go on."""
        try:
            requests = decode_requests(message, self.bounds)
            whole = {request.id for request in requests if request.is_whole}
            if not self._running.keys().isdisjoint(whole):
                raise messages.ProtocolError("a request id that is in use")
        except messages.ProtocolError as error:
            log.error("refusing %d requests that came in %s", len(message.request_ids), error)
            refused = InferenceFailed(f"the engine refused the request, which came in {error}")
            for request_id in set(message.request_ids):
                if request_id in self._in_parts:
                    self._in_parts[request_id].withdraw()
                elif request_id in self._running:
                    continue
                self._write(messages.frame(messages.to_error_reply(request_id, refused)))
            return
        for request in requests:
            if request.id in whole:
                submit = partial(self._submit, request)
                self._run(request.id, self._answer(request.id, request.tokens, submit))
            elif request.id in self._in_parts:  # otherwise it has ended
                self._in_parts[request.id].append(request.sequences, request.reserved)

    def _run(self, request_id: int, answer: Coroutine[Any, Any, None]) -> None:
        """Until it ends; a task that is cancelled before its first step runs no `finally`."""
        task = self._running[request_id] = asyncio.create_task(answer)
        task.add_done_callback(lambda _: self._forget(request_id))

    def _forget(self, request_id: int) -> None:
        del self._running[request_id]
        self._in_parts.pop(request_id, None)

    async def _submit(self, request: RemoteRequest) -> InferenceResult:
        self.engine.check_open()
        TRACEPARENT.set(request.trace)  # in the context of this task
        return await self.engine.batcher.submit(request.sequences, timeout_seconds=request.deadline - time.monotonic())

    async def _answer(self, request_id: int, tokens: int, finish: Callable[[], Awaitable[InferenceResult]]) -> None:
        try:
            result = await finish()
        except ServiceError as error:
            self._write_error(request_id, tokens, error)
        else:
            self._enqueue(RemoteResult(id=request_id, rows=result.rows, forward_seconds=result.forward_seconds))

    def _write_error(self, request_id: int, tokens: int, error: ServiceError) -> None:
        full = type(error) is Overloaded  # whatever its deadline; DeadlineTooShort says nothing of other requests
        self._reported_full |= full
        rejected = tokens if full else 0
        self._write(messages.frame(messages.to_error_reply(request_id, error, min_rejected_tokens=rejected)))

    def _reply_to(self, topic: messages.Topic) -> bytes:
        if topic == "ready":
            return self.engine.readiness().encode()
        return orjson.dumps(self.engine.info()) if topic == "info" else self.engine.metrics.queue_text()

    def _enqueue(self, result: RemoteResult) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(result)

    def _flush(self) -> None:
        results, self._outbox = self._outbox, []
        for chunk in chunk_by_bytes(results):
            try:
                self._write(messages.frame(encode_results(chunk)))
            except TooLarge as error:
                for result in chunk:
                    self._write(messages.frame(messages.to_error_reply(result.id, error)))

    def _write(self, content: bytes) -> None:
        self.writer.write(content)
        if self.writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            log.error("dropping a connection that does not read its results: %r", self)
            self.writer.transport.abort()


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
        connection = ApiConnection(self.engine, self.engine.artifact.manifest.bounds, writer)
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
    engine = ModelEngine(artifact, settings, Metrics(), degraded=spec.degraded, tracing=start_tracing(settings))
    # never closed: that would wait for a thread that still loads, or for a run that hangs
    runner = asyncio.Runner(loop_factory=new_loop)
    code = runner.run(EngineWorker(engine, spec.heartbeat).run(socket.socket(fileno=spec.listener)))
    if engine.tracing is not None:
        engine.tracing.close()
    return code


if __name__ == "__main__":
    run_child(work)
