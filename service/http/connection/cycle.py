"""Writes a response that is complete at once: its head and its body in one piece. Knows nothing of tasks."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

JOINED_BYTES = 2**16  # of a body that is copied behind its head, which takes 3 us: another write takes longer
VISIBLE = bytes({*range(256)} - {*range(0x20), 0x7F} | {0x09})  # what the value of a header may hold


class WholeResponseCycle(RequestResponseCycle):
    """uvicorn's cycle of a request and its response, which checks and writes a head and each part of a body alone.

    It keeps the head of a response until its body begins. A body that comes in parts is uvicorn's. The names of headers
    are the application's own and are not checked.
    """

    _head: Any = None

    async def send(self, message: Any) -> None:
        """Raises RuntimeError for a header's value with control characters."""
        if message["type"] == "http.response.start" and not self.response_started:
            self._head = message
            return
        head, self._head = self._head, None
        if head is None:
            await super().send(message)
        elif self._is_whole(head, message):
            if self.flow.write_paused and not self.disconnected:
                await self.flow.drain()
            if not self.disconnected:
                self._write_whole(head["status"], head["headers"], message.get("body", b""))
        else:
            await super().send(head)
            await super().send(message)

    async def receive(self) -> Any:
        """A body that has arrived is not waited for: most have with their head."""
        arrived = not self.more_body and not self.response_complete and not self.disconnected
        if not arrived or not self.message_event.is_set() or self.waiting_for_100_continue:
            return await super().receive()
        self.flow.resume_reading()
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    def _is_whole(self, head: Any, message: Any) -> bool:
        if message["type"] != "http.response.body" or message.get("more_body") or self.access_log:
            return False
        names = dict(head.get("headers", ()))
        stated = names.get(b"content-length", b"")
        whole = stated.isdigit() and int(stated) == len(message.get("body", b""))
        return whole and b"connection" not in names and self.scope["method"] != "HEAD"

    def _write_whole(self, status: int, headers: Any, body: bytes) -> None:
        lines = [*self.default_headers, *headers]
        if not self.keep_alive:
            lines.append((b"connection", b"close"))
        text = b"\r\n".join(map(b": ".join, lines))
        if text.translate(None, VISIBLE) != b"\r\n" * (len(lines) - 1):
            raise RuntimeError("a response header holds a control character")
        self.response_started = self.response_complete = True
        start = b"%b%b\r\n\r\n" % (STATUS_LINE[status], text)
        if len(body) <= JOINED_BYTES:
            self.transport.write(start + body)
        else:
            self.transport.write(start)
            self.transport.write(body)
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
