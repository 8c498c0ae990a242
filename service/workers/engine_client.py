"""The queue of the engine process, as an API worker sees it."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from packbert.model_export.artifact.batch import Tokens
from packbert.service.errors import Overloaded, TooLarge, Unavailable
from packbert.service.scheduling.request import Request
from packbert.service.scheduling.wait import GOLDEN_RATIO, MIN_RETRY_SECONDS
from packbert.service.workers import messages
from packbert.service.workers.messages import READ_AHEAD_BYTES, MessageWriter, decode_rows, encode_sequences

MAX_UNSENT_BYTES = 64 * 2**20  # that the engine has not read; beyond it new requests are rejected
REJECT_SECONDS = 0.05  # after the queue was full: new requests are rejected locally, before their bodies are read
QUERY_TIMEOUT_SECONDS = 5.0
RECONNECT_SECONDS = 0.1  # between two attempts at least
RETRY_SECONDS = 2.0  # by then the engine has usually been restarted
log = logging.getLogger("service")


@dataclass(slots=True, eq=False)
class EngineClient:
    """The connection to the engine worker; `keep_connected` has to run as a task."""

    socket: Path
    artifact: str  # digest of the artifact that this process tokenizes for
    grace_seconds: float  # beyond a request's deadline, for a run that has already started
    on_other_artifact: Callable[[], None] = lambda: None  # the engine serves a different artifact
    on_taken_over: Callable[[], None] = lambda: None  # another artifact answers for this model's name
    hello: messages.Hello | None = None  # of a model that is one of several
    fault: str = ""  # why the engine cannot serve it
    connected_once: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: MessageWriter | None = None
    _last_id: int = 0  # of requests and queries
    _requests: dict[int, Request] = field(default_factory=dict)  # that have not ended
    _queries: dict[int, "asyncio.Future[bytes]"] = field(default_factory=dict)
    _overload: Overloaded | None = None
    _overloaded_until: float = 0.0
    _min_rejected_tokens: int = 0
    _rejections: int = 0  # requests rejected since the last report to the engine
    _closed: str = ""  # the reason

    async def rate(self) -> float:
        """As InferenceQueue.rate. Raises as `query`."""
        return float(await self.query("rate"))

    def begin(
        self, work: Sequence[Tokens], *, sequences: int = 0, tokens: int = 0, part: int = 0, timeout_seconds: float
    ) -> Request:
        """As Batcher.begin, but the request ends with what that raises, and with Unavailable where the engine ends.

        Raises Unavailable without an engine.
        """
        self._check_open()
        now, loop = time.monotonic(), asyncio.get_running_loop()
        deadline = now + timeout_seconds
        request = Request(list(work), arrived=now, deadline=deadline, missing=sequences, reserved=tokens, part=part)
        request.queue, request.ended = self, loop.create_future()
        self._last_id = request.number = self._last_id + 1
        request.timer = loop.call_later(timeout_seconds + self.grace_seconds, self._give_up, request)
        self._requests[request.number] = request
        head = (request.number, request.deadline, request.trace, sequences, tokens, part)
        self._send_sequences(request, messages.Submit(*head, encode_sequences(work)))
        return request

    def append(self, request: Request, work: Sequence[Tokens], reserved: int) -> None:
        """As Request.append."""
        if not request.ended.done():
            request.extend(work, reserved)
            self._send_sequences(request, messages.Append(request.number, reserved, encode_sequences(work)))

    def withdraw(self, request: Request) -> None:
        """As Request.withdraw."""
        if self._requests.pop(request.number, None) is None:
            return
        request.timer.cancel()
        request.measure_wait(time.monotonic())  # includes the transfer between processes
        if not request.ended.done() or request.ended.cancelled():
            request.ended.cancel()
            self._send(messages.Cancel(request.number))
        else:
            request.ended.exception()  # otherwise the event loop would log it

    def check_admission(self, tokens: int) -> None:
        """Raises Unavailable without an engine, Overloaded where so many tokens did not fit the queue a moment ago."""
        self._check_open()
        overload = self._overload
        if overload is not None and tokens >= self._min_rejected_tokens and time.monotonic() < self._overloaded_until:
            if not self._rejections:
                asyncio.get_running_loop().call_later(REJECT_SECONDS, self._report_rejections)
            self._rejections += 1
            spread = 1.0 + self._rejections * GOLDEN_RATIO % 1.0  # they must not all come back at the same time
            raise Overloaded(overload.message, retry_after=spread * (overload.retry_after or MIN_RETRY_SECONDS))

    async def query(self, topic: messages.Topic) -> bytes:
        """Also after `close`. Raises Unavailable where the engine does not reply within QUERY_TIMEOUT_SECONDS."""
        writer = self._engine_writer()
        self._report_rejections()
        self._last_id = query_id = self._last_id + 1
        future = self._queries[query_id] = asyncio.get_running_loop().create_future()
        writer.send(messages.Query(query_id, topic))
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_SECONDS):
                content: bytes = await future
                return content
        except TimeoutError:
            reason = f"the engine has not replied for {QUERY_TIMEOUT_SECONDS:g} s"
            raise Unavailable(reason, retry_after=RETRY_SECONDS) from None
        finally:
            del self._queries[query_id]

    async def keep_connected(self) -> None:
        """Until cancelled. Without an engine the connection waits in the socket's backlog: there is no polling."""
        while True:
            started = time.monotonic()
            try:
                await self._read_loop()
            except (OSError, asyncio.IncompleteReadError):
                log.warning("the engine has ended: requests are rejected until it is restarted")
            except messages.ProtocolError as error:
                log.error("reconnecting, because the engine sent %s", error)
            finally:
                self._fail_pending(_retry_later("the engine is being restarted"))
            await asyncio.sleep(max(0.0, started + RECONNECT_SECONDS - time.monotonic()))

    def close(self, reason: str) -> None:
        """Fails all pending requests and all new ones with Unavailable."""
        self._closed = reason
        for request_id in self._requests:
            self._send(messages.Cancel(request_id))
        self._fail_pending(Unavailable(reason))

    async def _read_loop(self) -> None:
        reader, stream = await asyncio.open_unix_connection(str(self.socket), limit=READ_AHEAD_BYTES)
        writer = MessageWriter(stream)
        try:
            writer.send(self.hello or messages.Hello(messages.VERSION, self.artifact))
            reply = await messages.read_hello(reader)
            if reply.fault:
                self.fault = reply.fault
                self.connected_once.set()
                return
            if reply.artifact != self.artifact:
                self.on_other_artifact()
                return
            if self.hello:
                self.hello = msgspec.structs.replace(self.hello, source="")
            self._writer = writer
            self.connected_once.set()
            while True:
                self._handle(await messages.read_message(reader, messages.FROM_ENGINE))
        finally:
            self._writer, self._overload, self._rejections = None, None, 0
            stream.close()

    def _handle(self, message: messages.FromEngine) -> None:
        if isinstance(message, messages.Result):
            if (request := self._requests.get(message.request_id)) is not None:
                rows = decode_rows(message)
                request.rows[request.answered : request.answered + len(rows)] = rows
                request.answered += len(rows)
                request.forward_seconds = message.forward_seconds
                request.advance()
        elif isinstance(message, messages.ErrorReply):
            error = messages.to_exception(message)
            if message.min_rejected_tokens and isinstance(error, Overloaded):
                self._overload, self._min_rejected_tokens = error, message.min_rejected_tokens
                self._overloaded_until = time.monotonic() + REJECT_SECONDS
            if (request := self._requests.get(message.request_id)) is not None:
                request.end(error)
        elif isinstance(message, messages.TakenOver):
            self.on_taken_over()
        elif (query := self._queries.get(message.query_id)) is not None and not query.done():
            query.set_result(message.content)

    def _check_open(self) -> None:
        """Raises Unavailable after `close`, and as `_engine_writer`."""
        if self._closed:
            raise Unavailable(self._closed)
        self._engine_writer()

    def _engine_writer(self) -> MessageWriter:
        """Raises Unavailable where there is no connection, or where the engine does not read from it."""
        if self._writer is None:
            raise _retry_later("the engine is not running")
        if self._writer.unread_bytes > MAX_UNSENT_BYTES:
            raise _retry_later("the engine does not accept requests")
        return self._writer

    def _give_up(self, request: Request) -> None:
        request.end(Unavailable("the engine does not answer", retry_after=RETRY_SECONDS))
        self._send(messages.Cancel(request.number))

    def _report_rejections(self) -> None:
        """The engine counts them; an engine that has ended took its counters with it."""
        if self._rejections:
            self._send(messages.RejectedLocally(self._rejections))
        self._rejections = 0

    def _send_sequences(self, request: Request, message: messages.Submit | messages.Append) -> None:
        """Ends the request where no frame can hold the message."""
        try:
            self._send(message)
        except TooLarge as error:
            request.end(error)
            self._send(messages.Cancel(request.number))

    def _send(self, message: messages.Message) -> None:
        """Does nothing without a connection: its requests have failed with it. Raises as `MessageWriter.send`."""
        if self._writer is not None:
            self._writer.send(message)

    def _fail_pending(self, error: Unavailable) -> None:
        for request in self._requests.values():
            request.end(error)
        for query in self._queries.values():
            if not query.done():
                query.set_exception(error)


def _retry_later(reason: str) -> Unavailable:
    return Unavailable(f"{reason}: try again in a few seconds", retry_after=RETRY_SECONDS)
