"""The engine process, and its connection to each API worker."""

import asyncio
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from packbert.service.artifact import Artifact, ManifestError, read_artifact
from packbert.service.engine.cpu import available_cores
from packbert.service.engine.engine import Device, ModelEngine, common_concurrency
from packbert.service.errors import DeviceError, Overloaded, ServiceError
from packbert.service.observability.metrics import Metrics
from packbert.service.observability.start import start_tracing
from packbert.service.scheduling.request import Request
from packbert.service.settings import Settings
from packbert.service.trace_context import TRACEPARENT
from packbert.service.turns import new_loop
from packbert.service.workers import messages
from packbert.service.workers.child import LOAD_FAILED, WorkerSpec, metrics_dir, run_child, send_heartbeats
from packbert.service.workers.messages import READ_AHEAD_BYTES, MessageWriter, decode_sequences, encode_rows

MAX_UNREAD_BYTES = 512 * 2**20  # of results that an API worker has not read; beyond it the connection is dropped
FOLLOW_SECONDS = 30.0  # for the other API workers to end with the artifact before
FLUSH_SECONDS = 1.0  # for the last results, when the engine ends
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class ApiConnection:
    """One connection to the engine's socket, normally of an API worker."""

    engine: ModelEngine
    writer: MessageWriter
    process: int = 0  # of the API worker
    _requests: dict[int, Request] = field(default_factory=dict)  # admitted and not answered

    def __repr__(self) -> str:
        return f"<ApiConnection {len(self._requests)} requests>"

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until the connection ends; then its pending requests are cancelled. Raises as `read_message` does."""
        try:
            self.writer.send(messages.Hello(messages.VERSION, self.engine.artifact.digest))
            while True:
                self._handle(await messages.read_message(reader, messages.FROM_API))
        finally:
            while self._requests:
                self._requests.popitem()[1].withdraw()

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
            self._submit(message)
        elif isinstance(message, messages.Append):
            if (request := self._requests.get(message.request_id)) is not None:  # otherwise it has ended
                request.append(decode_sequences(message.sequences), message.reserved)
        elif isinstance(message, messages.Cancel):
            if (request := self._requests.pop(message.request_id, None)) is not None:
                request.withdraw()
        elif isinstance(message, messages.RejectedLocally):
            self.engine.batcher.counts.refuse(message.requests)
        else:
            self._send(messages.QueryReply(message.query_id, self._reply_to(message.topic)))

    def _submit(self, message: messages.Submit) -> None:
        """Admits the request, or refuses it."""
        work = decode_sequences(message.sequences)
        TRACEPARENT.set(message.trace)  # in the context of this connection's task, for the request's record
        try:
            self.engine.check_open()
            request = self.engine.batcher.begin(
                work,
                sequences=message.missing,
                tokens=message.reserved,
                part=message.part,
                timeout_seconds=message.deadline - time.monotonic(),
            )
        except ServiceError as error:
            self._send_error(message.request_id, message.reserved + sum(map(len, work)), error)
        else:
            self._requests[message.request_id] = request
            self._answer_when_ready(message.request_id, request)

    def _answer_when_ready(self, request_id: int, request: Request) -> None:
        request.caught_up().add_done_callback(lambda _: self._answer(request_id, request))

    def _answer(self, request_id: int, request: Request) -> None:
        """Sends the rows of the request's sequences so far, or what has ended it."""
        if request_id not in self._requests:  # it was cancelled
            return
        try:
            if rows := request.take_rows():
                self._send(messages.Result(request_id, request.forward_seconds, len(rows), encode_rows(rows)))
        except ServiceError as error:  # of the request, or of an answer that no frame can hold
            self._send_error(request_id, request.size, error)
            request.end(error)
        if request.ended.done():
            del self._requests[request_id]
            request.withdraw()
        else:
            self._answer_when_ready(request_id, request)

    def _send_error(self, request_id: int, tokens: int, error: ServiceError) -> None:
        rejected = tokens if type(error) is Overloaded else 0  # DeadlineTooShort says nothing of other requests
        self._send(messages.to_error_reply(request_id, error, min_rejected_tokens=rejected))

    def _reply_to(self, topic: messages.Topic) -> bytes:
        if topic == "ready":
            return self.engine.readiness().encode()
        if topic == "rate":
            return b"%r" % (self.engine.batcher.tokens_per_second if self.engine.opened else math.inf)
        return orjson.dumps(self.engine.info()) if topic == "info" else self.engine.metrics.queue_text()

    def _send(self, message: messages.Message) -> None:
        self.writer.send(message)
        if self.writer.unread_bytes > MAX_UNREAD_BYTES:
            log.error("dropping a connection that does not read its results: %r", self)
            self.writer.stream.transport.abort()


# the socket's file has to stay, because the replacement accepts on it too
KEEP_SOCKET_FILE: Mapping[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


@dataclass(slots=True, eq=False)
class EngineWorker:
    """Accepts connections of API workers; `run` returns after a signal or a failure."""

    engines: list[ModelEngine]  # the last one of a name answers for it
    heartbeat: int  # write end of the pipe
    make: Callable[[messages.Hello], ModelEngine] | None = None  # where models can be swapped
    on_taken_over: Callable[[messages.Hello], None] = lambda hello: None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _loaded: asyncio.Event = field(default_factory=asyncio.Event)  # the models of the start
    _left: asyncio.Event = field(default_factory=asyncio.Event)  # a connection has ended
    _connections: set[ApiConnection] = field(default_factory=set)
    _end: asyncio.Event = field(default_factory=asyncio.Event)
    _heartbeats: "asyncio.Task[None] | None" = None
    _code: int = 0

    async def run(self, listener: socket.socket) -> int:
        """The exit code."""
        loop = asyncio.get_running_loop()
        for engine in self.engines:
            engine.on_fatal = lambda: self._finish(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._finish, 0)
        server = await asyncio.start_unix_server(
            self._on_connect, sock=listener, limit=READ_AHEAD_BYTES, **KEEP_SOCKET_FILE
        )
        loading = asyncio.create_task(self._load())
        await self._end.wait()
        server.close()
        loading.cancel()
        for engine in [*self.engines]:  # a connection that ends meanwhile removes its own
            await engine.close()
        await asyncio.gather(*(connection.close() for connection in self._connections))
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        return self._code

    async def _load(self) -> None:
        try:
            for engine in self.engines:
                await engine.open()
        except Exception as error:
            log.error("the model cannot be loaded: %s", error, exc_info=not isinstance(error, DeviceError))
            self._finish(LOAD_FAILED)
        else:
            self._loaded.set()
            self._heartbeats = asyncio.create_task(send_heartbeats(self.heartbeat))

    def _finish(self, code: int) -> None:
        self._code = self._code or code
        self._end.set()

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ApiConnection(self.engines[0], MessageWriter(writer))
        try:
            hello = await messages.read_hello(reader)
            connection.process = hello.process
            connection.engine = await self._engine_for(hello)
            self._connections.add(connection)
            await connection.serve(reader)
        except (DeviceError, ManifestError) as error:
            connection.writer.send(messages.Hello(messages.VERSION, "", fault=str(error)))
            await connection.close()
        except (OSError, asyncio.IncompleteReadError):
            log.info("an API worker has disconnected: %r", connection)
        except messages.ProtocolError as error:
            log.error("dropping a connection that sent %s", error)
        finally:
            self._connections.discard(connection)
            self._left.set()
            writer.close()
            await self._close_unused()

    async def _engine_for(self, hello: messages.Hello) -> ModelEngine:
        """That of the artifact, or else the one that answers for its name: the API worker then restarts with that.

        One that takes over is opened where it is new, and the other API workers follow first. Raises DeviceError and
        ManifestError.
        """
        if self.make is None:
            return self.engines[0]
        if hello.source:
            await self._loaded.wait()
        async with self._opening:
            named = [one for one in self.engines if one.artifact.manifest.name == hello.name]
            asked = (hello.artifact, Path(hello.folder))
            engine = next((one for one in named if (one.artifact.digest, one.artifact.folder.parent) == asked), None)
            if not hello.source or named[-1] is engine:
                return engine or named[-1]
            if engine is not None:
                self.engines.remove(engine)
            else:
                engine = self.make(hello)
                engine.on_fatal = lambda: self._finish(1)
                try:
                    await engine.open()
                except Exception as error:
                    raise DeviceError(f"{type(error).__name__}: {error}") from error
            self.engines.append(engine)
            self.on_taken_over(hello)
        named = [one for one in named if one is not engine]
        others = [one for one in self._connections if one.engine in named and one.process != hello.process]
        for connection in others:
            connection.writer.send(messages.TakenOver())
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOW_SECONDS):
                while not self._connections.isdisjoint(others):
                    self._left.clear()
                    await self._left.wait()
        return engine

    async def _close_unused(self) -> None:
        """The engines that no longer answer for a name, when the last API worker has left them."""
        last = {one.artifact.manifest.name: one for one in self.engines}
        used = [*last.values(), *(connection.engine for connection in self._connections)]
        unused = [one for one in self.engines if one not in used]
        for engine in unused:
            self.engines.remove(engine)
        for engine in unused:
            await engine.close()


def work(spec: WorkerSpec, settings: Settings, artifacts: Sequence[Artifact]) -> int:
    metrics, tracing = Metrics(spec.name, metrics_dir(Path(spec.folder))), start_tracing(settings)
    threads = settings.threads or available_cores()
    device = Device(common_concurrency(artifacts, threads))

    def make(artifact: Artifact) -> ModelEngine:
        return ModelEngine(artifact, settings, metrics, degraded=spec.degraded, tracing=tracing, device=device)

    def make_new(hello: messages.Hello) -> ModelEngine:
        return make(read_artifact(Path(hello.folder), spec.device).served_as(hello.name))

    worker = EngineWorker([make(one) for one in artifacts], spec.heartbeat)
    if settings.can_swap:
        worker.make = make_new
        worker.on_taken_over = lambda hello: spec.remember(hello.name, hello.folder, hello.source)
    # never closed: that would wait for a thread that still loads, or for a run that hangs
    runner = asyncio.Runner(loop_factory=new_loop)
    code = runner.run(worker.run(socket.socket(fileno=spec.listener)))
    if tracing is not None:
        tracing.close()
    return code


if __name__ == "__main__":
    run_child(work)
