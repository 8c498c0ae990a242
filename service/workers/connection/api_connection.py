"""The engine's side of one API worker's connection: its requests join the queue; results that are ready together leave
in one message.

Knows a connection and an engine; knows nothing of HTTP or texts.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from model_export.artifact.manifest import ModelBounds
from service.engine.engine import ModelEngine
from service.errors import InferenceFailed, Overloaded, ServiceError, TooLarge
from service.scheduling.results import InferenceResult, RequestInParts
from service.tracing.context import TRACEPARENT
from service.workers import messages
from service.workers.codec import RemoteRequest, RemoteResult, chunk_by_bytes, decode_requests, encode_results

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
