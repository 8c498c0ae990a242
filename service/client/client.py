"""The service for Python programs: `Client(url).embed(texts)` gives an array."""

import io
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from service.bulk.chunks import Input
from service.bulk.tasks import TASKS, Answers, BulkEngine, RequestFailed, Task, as_json
from service.client.sender import Sender

JSON, NPY = "application/json", "application/x-npy"
TIMEOUT_SECONDS = 120.0


class Client(BulkEngine):
    """A client of one server, for use in one thread. Each call sends several requests at a time.

    Raises RequestFailed where the server refuses an input (`index` is its place among the inputs of the call), or where
    it cannot be reached or is overloaded for `patience_seconds`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: str = "",
        max_requests: int = 8,
        patience_seconds: float = 300.0,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_seconds, trust_env=False)
        self._sender = Sender(self._http, max_requests=max_requests, patience_seconds=patience_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def info(self) -> dict[str, Any]:
        """The content of /info. Raises RequestFailed."""
        response = self._sender.send("/info", None, accept=JSON)
        if isinstance(response, RequestFailed):
            raise response
        content: dict[str, Any] = response.json()
        return content

    def embed(self, texts: Sequence[str], **fields: Any) -> NDArray[np.float32]:
        """[texts, dimensions] float32. `fields` are those of /embed: pooling, normalize, dimensions, truncate, ..."""
        rows = list(self.run_all("embed", texts, **fields))
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)

    def fill_mask(self, texts: Sequence[str], **fields: Any) -> list[Any]:
        """For each text the candidates of its mask, or a list for each of its masks."""
        return list(self.run_all("fill-mask", texts, **fields))

    def nsp(self, pairs: Sequence[tuple[str, str]], **fields: Any) -> list[Any]:
        """For each pair whether its second text follows the first."""
        return list(self.run_all("nsp", pairs, **fields))

    def predict(self, inputs: Sequence[Input], **fields: Any) -> list[Any]:
        """For each text or pair its labels with scores, best first."""
        return list(self.run_all("predict", inputs, **fields))

    def tag(self, texts: Sequence[str], **fields: Any) -> list[Any]:
        """For each text its tags."""
        return list(self.run_all("tag", texts, **fields))

    def run_chunks(
        self, task: str, chunks: Iterable[list[Input]], **fields: Any
    ) -> Iterator[tuple[Answers, list[Input]]]:
        """The answers to each chunk, or why it failed, with the chunk itself."""
        spec = TASKS[task]

        def answer(chunk: list[Input]) -> Answers:
            body = {"inputs": [as_json(item, spec) for item in chunk], **fields}
            response = self._sender.send(spec.path, body, accept=NPY if spec.arrays else JSON)
            return response if isinstance(response, RequestFailed) else read_answers(response, spec, len(chunk))

        return self._sender.run_in_order(chunks, answer)


def read_answers(response: httpx.Response, spec: Task, count: int) -> Sequence[Any]:
    """The answer to each of the `count` inputs of a request."""
    if spec.arrays:
        rows: NDArray[np.float32] = np.load(io.BytesIO(response.content), allow_pickle=False)
        return list(rows)
    content = response.json()
    answers: list[Any] = [content] if spec.unwraps and count == 1 else content
    return answers
