"""Whether whoever asked is still there: work for somebody who left is cancelled."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
PRESENCE = "presence"  # the key in a request's state under which the connection hands it to the application


class ClientDisconnected(Exception):
    """The caller closed the connection before the answer was there."""


@dataclass(slots=True, eq=False)
class ClientConnection:
    """The other end of one connection, which has one request at a time. Told by the connection itself, so that no task has to watch for it."""

    gone: bool = False
    _task: asyncio.Task[Any] | None = None

    async def run_until_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done on the calling task; cancels it and raises Left as soon as the caller is gone."""
        if self.gone:
            work.close()
            raise ClientDisconnected
        self._task = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if self.gone and self._task is not None:
                self._task.uncancel()
                raise ClientDisconnected from None
            raise
        finally:
            self._task = None

    def leave(self) -> None:
        self.gone = True
        if self._task is not None:
            self._task.cancel()
