"""`python -m benchmarks.null PORT`: a server that does nothing: what it answers is ready. Shows what the client is able to ask."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import orjson
import uvicorn

BODY = orjson.dumps(np.random.default_rng(9).standard_normal((1, 768), np.float32), option=orjson.OPT_SERIALIZE_NUMPY)
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(BODY)).encode())]}


async def application(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send(START)
        await send({"type": "http.response.body", "body": BODY})


if __name__ == "__main__":
    uvicorn.run(application, host="127.0.0.1", port=int(sys.argv[1]), http="httptools", log_level="warning", access_log=False, lifespan="off")
