"""The line, seen from an API process: the same `submit`, whose work is done by an engine at the other end of a unix socket.

Requests that are ready in the same turn of the loop leave in one message. Knows connections and callers; knows nothing of HTTP,
tasks or ONNX Runtime.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from model_export.artifact.batch import Tokens
from service.errors import Overloaded, ServiceError, TooLarge, Unavailable
from service.scheduling.results import InferenceResult
from service.workers.codec import RemoteRequest, RemoteResult, chunk_by_bytes, decode_results, encode_requests
from service.workers.messages import (
    MAX_HELLO_BYTES,
    VERSION,
    About,
    Cancel,
    ErrorReply,
    FromEngine,
    Hello,
    ProtocolError,
    Query,
    QueryReply,
    RejectedLocally,
    ResultBatch,
    Welcome,
    frame,
    read_from_engine,
    to_exception,
)

READ_BYTES = 2**20  # that are read ahead
MAX_UNSENT_BYTES = 64 * 2**20  # that the engine has not taken; beyond it newcomers are refused
REFUSAL_SECONDS = 0.05  # for so long a full line is taken to be full still: newcomers are refused before they are read
QUESTION_SECONDS = 5.0  # an engine that does not say how it is for so long is not well
PAUSE_SECONDS = 0.1  # between connections that end at once
RETRY_SECONDS = 2.0  # an engine is back by then, as a rule
log = logging.getLogger("service")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class EngineClient:
    socket: Path
    artifact: str  # digest of the artifact that this process makes tokens for
    patience_seconds: float  # beyond a request's deadline, for a run that it is part of
    on_other_artifact: Callable[[], None] = lambda: None  # the engine serves another model by now
    connected_once: asyncio.Event = field(default_factory=asyncio.Event)  # an engine has been found once
    _writer: asyncio.StreamWriter | None = None
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _outbox: dict[int, RemoteRequest] = field(default_factory=dict)
    _callers: dict[int, "asyncio.Future[RemoteResult]"] = field(default_factory=dict)
    _questions: dict[int, "asyncio.Future[bytes]"] = field(default_factory=dict)
    _full: Overloaded | None = None
    _full_for: int = 0  # tokens
    _full_until: float = 0.0
    _refused: int = 0  # requests, since the engine was last told of them
    _closed: str = ""

    def __repr__(self) -> str:
        return f"<RemoteBatcher {'connected' if self._writer else 'not connected'}, {len(self._callers)} requests>"

    async def submit(self, work: Sequence[Tokens], *, timeout_seconds: float) -> InferenceResult:
        """As Batcher.submit; raises Unavailable too where there is no engine, or where it ends before it has answered."""
        self._connection()
        started = time.monotonic()
        number = next(self._numbers)
        future = self._callers[number] = asyncio.get_running_loop().create_future()
        self._put(RemoteRequest(number=number, deadline=started + timeout_seconds, work=work))
        try:
            async with asyncio.timeout(timeout_seconds + self.patience_seconds):
                reply = await future
        except TimeoutError:
            self._withdraw(number)
            raise Unavailable("the engine does not answer", retry_after=RETRY_SECONDS) from None
        except asyncio.CancelledError:
            self._withdraw(number)
            raise
        finally:
            del self._callers[number]
        elapsed = time.monotonic() - started  # the way there and back counts as waiting
        return InferenceResult(
            rows=list(reply.rows), queue_seconds=elapsed - reply.forward_seconds, forward_seconds=reply.forward_seconds
        )

    def check_admission(self, tokens: int) -> None:
        """Raises Unavailable without an engine, Overloaded where the line was too full for so many tokens a moment ago."""
        self._connection()
        if self._full is not None and tokens >= self._full_for and time.monotonic() < self._full_until:
            if not self._refused:
                asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self._tell_refused)
            self._refused += 1
            raise Overloaded(self._full.message, retry_after=self._full.retry_after)

    async def ask(self, about: About) -> bytes:
        """Raises Unavailable where nobody answers."""
        writer = self._connection()
        self._tell_refused()
        number = next(self._numbers)
        future = self._questions[number] = asyncio.get_running_loop().create_future()
        writer.write(frame(Query(number, about)))
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                content: bytes = await future
                return content
        except TimeoutError:
            raise Unavailable(
                f"the engine has said nothing for {QUESTION_SECONDS:g} s", retry_after=RETRY_SECONDS
            ) from None
        finally:
            del self._questions[number]

    async def keep_connected(self) -> None:
        """Until cancelled. Without an engine the connection waits in the socket's backlog, so that nobody has to try again and again."""
        while True:
            started = time.monotonic()
            try:
                await self._converse()
            except (OSError, asyncio.IncompleteReadError):
                log.warning("the engine has ended: requests are refused until there is another")
            except ProtocolError as error:
                log.error("the engine sent %s: connecting again", error)
            finally:
                self._end_all(
                    Unavailable(
                        "the engine is being started again: try again in a few seconds", retry_after=RETRY_SECONDS
                    )
                )
            await asyncio.sleep(max(0.0, started + PAUSE_SECONDS - time.monotonic()))

    def close(self, reason: str) -> None:
        """Answers everyone who waits with 503 and refuses newcomers."""
        self._closed = reason
        for number in list(self._callers):
            self._withdraw(number)
        self._end_all(Unavailable(reason))

    async def _converse(self) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self.socket), limit=READ_BYTES)
        try:
            writer.write(frame(Hello(VERSION)))
            said = await read_from_engine(reader, limit=MAX_HELLO_BYTES)
            if not isinstance(said, Welcome) or said.version != VERSION:
                raise ProtocolError("no welcome")
            if said.artifact != self.artifact:
                self.on_other_artifact()
                return
            self._writer = writer
            self.connected_once.set()
            while True:
                self._take(await read_from_engine(reader))
        finally:
            self._writer, self._full, self._refused = None, None, 0
            writer.close()

    def _take(self, said: FromEngine) -> None:
        if isinstance(said, ResultBatch):
            for reply in decode_results(said):
                _settle(self._callers.get(reply.number), reply)
        elif isinstance(said, ErrorReply):
            error = to_exception(said)
            if said.full_for and isinstance(error, Overloaded):
                self._full, self._full_for, self._full_until = error, said.full_for, time.monotonic() + REFUSAL_SECONDS
            _settle(self._callers.get(said.number), error)
        elif isinstance(said, QueryReply):
            _settle(self._questions.get(said.number), said.content)
        else:
            raise ProtocolError("a second welcome")

    def _connection(self) -> asyncio.StreamWriter:
        """Raises Unavailable where there is none, or where it takes nothing."""
        if self._closed:
            raise Unavailable(self._closed)
        if self._writer is None:
            raise Unavailable("there is no engine at the moment: try again in a few seconds", retry_after=RETRY_SECONDS)
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            raise Unavailable(
                "the engine takes no work at the moment: try again in a few seconds", retry_after=RETRY_SECONDS
            )
        return self._writer

    def _put(self, parcel: RemoteRequest) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send)
        self._outbox[parcel.number] = parcel

    def _send(self) -> None:
        parcels, self._outbox = list(self._outbox.values()), {}
        for together in chunk_by_bytes(parcels):
            if self._writer is None:
                return  # its callers have been told
            try:
                self._writer.write(frame(encode_requests(together)))
            except TooLarge as error:
                for parcel in together:
                    _settle(self._callers.get(parcel.number), error)

    def _tell_refused(self) -> None:
        """The line counts them. One that has ended meanwhile has taken its counts along."""
        if self._refused and self._writer is not None:
            self._writer.write(frame(RejectedLocally(self._refused)))
        self._refused = 0

    def _withdraw(self, number: int) -> None:
        """The engine need not go on with it."""
        if self._outbox.pop(number, None) is None and self._writer is not None:
            self._writer.write(frame(Cancel(number)))

    def _end_all(self, error: Unavailable) -> None:
        for caller in self._callers.values():
            _settle(caller, error)
        for question in self._questions.values():
            _settle(question, error)


def _settle(future: "asyncio.Future[T] | None", outcome: T | ServiceError) -> None:
    """None, or one that is done: its caller has left."""
    if future is None or future.done():
        return
    if isinstance(outcome, ServiceError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
