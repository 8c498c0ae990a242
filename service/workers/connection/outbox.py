"""What an API worker is about to send: requests that become ready in one turn of the event loop leave in one message.

Knows messages and the model's bounds; knows no connection and no pending requests.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from model_export.artifact.manifest import ModelBounds
from service.errors import InferenceFailed, ServiceError, TooLarge
from service.workers.bounds import find_fault, keeps_bounds
from service.workers.codec import RemoteRequest, chunk_by_bytes, encode_requests
from service.workers.messages import Message


@dataclass(slots=True, eq=False)
class Outbox:
    """Requests, and parts of requests, until the end of the turn in which they were added."""

    bounds: ModelBounds
    write: Callable[[Message], None]  # raises TooLarge for a message that no frame can hold
    refuse: Callable[[RemoteRequest, ServiceError], None]  # called for what is not sent
    _waiting: dict[int, RemoteRequest] = field(default_factory=dict)  # by id

    def add(self, request: RemoteRequest) -> None:
        """A second part of a request in the same turn makes the first one leave at once."""
        if request.id in self._waiting:
            self._flush()
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting[request.id] = request

    def drop(self, request_id: int) -> bool:
        """Whether nothing of the request has been sent, and nothing will be."""
        request = self._waiting.pop(request_id, None)
        return request is not None and request.is_whole

    def _flush(self) -> None:
        requests, self._waiting = list(self._waiting.values()), {}
        for chunk in chunk_by_bytes(requests):
            message = encode_requests(chunk)
            if not keeps_bounds(message, self.bounds):
                if not (chunk := self._refuse_faulty(chunk)):
                    continue
                message = encode_requests(chunk)
            try:
                self.write(message)
            except TooLarge as error:
                for request in chunk:
                    self.refuse(request, error)

    def _refuse_faulty(self, requests: Sequence[RemoteRequest]) -> list[RemoteRequest]:
        """Refuses those that the engine would refuse, each with the index of its first such input; the others."""
        good = []
        for request in requests:
            if (fault := find_fault(request.sequences, self.bounds)) is None:
                good.append(request)
            else:
                index, message = fault
                self.refuse(request, InferenceFailed(message, index=request.first + index))
        return good
