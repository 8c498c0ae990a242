"""`BERT_PORT=PORT python -m benchmarks.harness.null_server`: a bare ASGI server that sends prepared bytes.

It answers `POST /8000` with 8,000 bytes, and any other path with a vector of 768 numbers as JSON. It shows how many
requests the client can send, and what of a request's cost belongs to the socket and the HTTP parser: the event loop
and the connections are those of the service.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import orjson
import uvloop

from packbert.service.http.connection import Connection
from packbert.service.http.limits import ConnectionLimits

VECTOR: bytes = orjson.dumps(
    np.random.default_rng(9).standard_normal((1, 768), np.float32), option=orjson.OPT_SERIALIZE_NUMPY
)


async def application(
    scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        size = scope["path"][1:]
        body = bytes(int(size)) if size.isdigit() else VECTOR
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


async def serve(port: int) -> None:
    limits = ConnectionLimits()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(application, limits), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(os.environ["BERT_PORT"])))


if __name__ == "__main__":
    main()
