"""`Client` and `AsyncClient`: the service over HTTP, for programs."""

import asyncio
import io
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import quote

import httpx
import numpy as np
from numpy.typing import NDArray

from ..errors import Invalid, NotFound, TokenizerFailed
from .files import Input
from .job import TASKS, Answered, Answers, BulkEngine, Call, RequestFailed, Task, as_json, as_texts, in_order

FIRST_REQUESTS = 2  # at a time, before the server has answered
FINAL_ERRORS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)  # of the URL or a header
NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
RETRIED_STATUSES = {429, 502, 503, 504}
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 15.0  # if the server names no Retry-After
MAX_NAMED_SECONDS = 300.0
TIMEOUT_SECONDS = 120.0
JSON, NPY = "application/json", "application/x-npy"
DIGEST, ROWS = "x-model-digest", "x-npy-rows"  # ROWS: the tokens of each text, whose vectors are joined
log = logging.getLogger("service")
P = ParamSpec("P")
T = TypeVar("T")


class Concurrency:
    """How many requests are under way, and how many may be. Shared by the threads of a client."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.allowed = float(min(FIRST_REQUESTS, most))
        self._most, self._clock = most, clock
        self._running = 0
        self._paused_until = 0.0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            while (wait := self._paused_until - self._clock()) > 0 or self._running >= int(self.allowed):
                self._changed.wait(wait if wait > 0 else None)
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def on_answer(self) -> None:
        with self._changed:
            self.allowed = min(self._most, self.allowed + 1 / self.allowed)
            self._changed.notify_all()

    def on_refusal(self, seconds: float) -> None:
        """No request starts for `seconds`; refusals during that time count once."""
        with self._changed:
            now = self._clock()
            if now >= self._paused_until:
                self.allowed = max(1.0, self.allowed / 2)
            self._paused_until = max(self._paused_until, now + seconds)
            self._changed.notify_all()


class Client(BulkEngine):
    """A client of one server, for use in one thread. Each call sends several requests at a time.

    Raises RequestFailed if the server refuses an input (`index` is its place among the inputs of the call), cannot be
    reached, or is overloaded for `patience_seconds`.
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
        trusted = httpx.create_ssl_context()  # SSL_CERT_FILE and SSL_CERT_DIR, which trust_env=False leaves out
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=timeout_seconds, trust_env=False, verify=trusted
        )
        self._patience, self._max_requests = patience_seconds, max_requests
        self._concurrency = Concurrency(max_requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def info(self, /, model: str | None = None) -> dict[str, Any]:
        """The content of /info of the model of this name, or of the default. Raises RequestFailed."""
        response = self._send(f"/models/{quote(str(model))}/info" if model else "/info", None, accept=JSON)
        if isinstance(response, RequestFailed):
            if model and response.status == NotFound.status:
                return self.info()  # a service of one model accepts any name
            if response.status == NotFound.status:
                text = "this server has no /info, which a job needs: with BERT_ADMIN_PORT it is on that port alone"
                raise RequestFailed(text, status=response.status)
            raise response
        try:
            content = response.json()
        except ValueError:
            content = None
        if not isinstance(content, dict) or "limits" not in content:
            raise RequestFailed(f"{response.url} is not the /info of this service: another server listens there")
        return content

    def embed(self, /, texts: Sequence[str], **fields: Any) -> NDArray[np.float32]:
        """[texts, dimensions] float32. `fields` are those of /embed: pooling, normalize, dimensions, truncate, ..."""
        rows = list(self.run_all("embed", texts, **fields))
        if any(row.ndim != 1 for row in rows):
            raise ValueError("embed gives one vector for each text: for several call embed_tokens, or run_all")
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)

    def embed_tokens(self, /, texts: Sequence[str], **fields: Any) -> list[NDArray[np.float32]]:
        """A float32 array [tokens, dimensions] for each text, as /embed with `pooling: "none"`."""
        return list(self.run_all("embed", texts, pooling="none", **fields))

    def fill_mask(self, /, texts: Sequence[str], **fields: Any) -> list[Any]:
        """For each text the candidates of its mask, or a list for each of its masks."""
        return list(self.run_all("fill-mask", texts, **fields))

    def nsp(self, /, pairs: Sequence[tuple[str, str]], **fields: Any) -> list[Any]:
        """For each pair whether its second text follows the first."""
        return list(self.run_all("nsp", pairs, **fields))

    def predict(self, /, inputs: Sequence[Input], **fields: Any) -> list[Any]:
        """For each text or pair its labels with scores, best first."""
        return list(self.run_all("predict", inputs, **fields))

    def tag(self, /, texts: Sequence[str], **fields: Any) -> list[Any]:
        """For each text its tags."""
        return list(self.run_all("tag", texts, **fields))

    def embed_sparse(self, /, texts: Sequence[str], **fields: Any) -> list[Any]:
        """For each text its words' weights, in one request."""
        return list(self.run("/embed_sparse", inputs=as_texts(texts), **fields))

    def rerank(self, /, query: str, texts: Sequence[str], **fields: Any) -> list[Any]:
        """The texts' places and scores, best first, in one request."""
        return list(self.run("/rerank", query=query, texts=as_texts(texts), **fields))

    def similarity(self, /, source_sentence: str, sentences: Sequence[str], **fields: Any) -> list[float]:
        """The cosine of each sentence's vector and the source sentence's, in one request."""
        inputs = {"source_sentence": source_sentence, "sentences": as_texts(sentences)}
        return list(self.run("/similarity", inputs=inputs, **fields))

    def score(self, /, texts: str | Sequence[str], **fields: Any) -> Any:
        """How likely each text is, in one request; with `text_1` and `text_2` see `run`."""
        return self.run("/score", inputs=texts, **fields)

    def answer(self, /, question: str, context: str, **fields: Any) -> Any:
        """The parts of the context that answer the question."""
        return self.run("/answer", question=question, context=context, **fields)

    def choose(self, /, prompt: str, choices: Sequence[str], **fields: Any) -> Any:
        """The choices by their probability."""
        return self.run("/choose", prompt=prompt, choices=list(choices), **fields)

    def tokenize(self, /, texts: Sequence[str], **fields: Any) -> list[Any]:
        """For each text its tokens, in one request."""
        return list(self.run("/tokenize", inputs=as_texts(texts), **fields))

    def attention(self, /, text: str | Mapping[str, str], **fields: Any) -> Any:
        """How much each token of a text or pair attends to each other, by layer and head."""
        return self.run("/attention", inputs=text, **fields)

    def run(self, /, route: str, **fields: Any) -> Any:
        """The content of the answer to one request of any route of a task, whose fields are `fields`."""
        response = self._send(route, fields, accept=JSON)
        if isinstance(response, RequestFailed):
            raise response
        try:
            return response.json()
        except ValueError:
            raise RequestFailed(f"{response.url} gave no JSON: another server listens there") from None

    def one_call(self, task: str, **fields: Any) -> Call:
        spec = TASKS[task]
        digests: dict[str, str] = {}  # of the model of the first answer

        def answer(chunk: list[Input]) -> Answers:
            body = {"inputs": [as_json(item, spec) for item in chunk], **fields}
            response = self._send(spec.path, body, accept=NPY if spec.arrays else JSON)
            if isinstance(response, RequestFailed):
                return response
            digest = response.headers.get(DIGEST, "")
            if digests.setdefault(DIGEST, digest) != digest:
                text = "the answers are of two models: call again after a swap; while one has a `weight`, name that one"
                return RequestFailed(text)
            return read_answers(response, spec, len(chunk))

        return partial(self._run_in_order, answer=answer)

    def _run_in_order(
        self, chunks: Iterable[list[Input]], answer: Callable[[list[Input]], Answers]
    ) -> Iterator[Answered]:
        """`answer` of each chunk, on threads; at most twice `max_requests` chunks are taken ahead."""
        most = 2 * self._max_requests - 1  # and the chunk that was read
        with ThreadPoolExecutor(self._max_requests, "packbert-client") as pool:
            yield from in_order(chunks, lambda chunk: pool.submit(answer, chunk), size=lambda _: 1, most=lambda: most)

    def _send(self, path: str, body: dict[str, Any] | None, *, accept: str) -> httpx.Response | RequestFailed:
        """GET if `body` is None. Returns the failure instead of raising it, so that an iteration can go on."""
        method = "GET" if body is None else "POST"
        ends = time.monotonic() + self._patience
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                with self._concurrency if body is not None else nullcontext():  # GET runs no model
                    response = self._http.request(method, path, json=body, headers={"accept": accept})
            except UnicodeEncodeError:
                text = "a text holds half of a surrogate pair, which UTF-8 has no bytes for: change it"
                return RequestFailed(text, status=Invalid.status, code=TokenizerFailed.code)
            except httpx.RequestError as error:
                url = f"{str(self._http.base_url).rstrip('/')}{path}"
                seconds, problem = pause, RequestFailed(f"no server answers at {url}: {error or type(error).__name__}")
                if isinstance(error, FINAL_ERRORS) or NOT_TRUSTED in str(error):
                    return problem
                if body is None and pause == FIRST_PAUSE_SECONDS and self._patience > pause:  # once for each GET
                    log.warning("%s; waiting for it, %g s at most", problem, self._patience)
            else:
                if response.status_code not in RETRIED_STATUSES:
                    self._concurrency.on_answer()
                    return response if response.is_success else read_failure(response)
                seconds, problem = named_seconds(response, pause), read_failure(response)
            if time.monotonic() + seconds > ends:
                return problem
            if body is None:
                time.sleep(seconds)
            else:
                self._concurrency.on_refusal(seconds)
            pause = min(MAX_PAUSE_SECONDS, 2 * pause)


def in_thread(method: Callable[Concatenate[Client, P], T]) -> Callable[Concatenate["AsyncClient", P], Awaitable[T]]:
    """`method` as a coroutine, which runs on a thread of the client."""

    @wraps(method)
    def call(self: "AsyncClient", /, *values: P.args, **named: P.kwargs) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self.threads, partial(method, self.client, *values, **named))

    return call


class AsyncClient:
    """The methods of `Client` as coroutines, for `async with`; it is made as `Client` is."""

    def __init__(self, url: str = "http://127.0.0.1:8080", *, max_requests: int = 8, **options: Any) -> None:
        self.client = Client(url, max_requests=max_requests, **options)
        self.threads = ThreadPoolExecutor(max_requests, "packbert-client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.threads.shutdown)
        self.client.close()

    info = in_thread(Client.info)
    run = in_thread(Client.run)
    embed = in_thread(Client.embed)
    embed_tokens = in_thread(Client.embed_tokens)
    embed_sparse = in_thread(Client.embed_sparse)
    fill_mask = in_thread(Client.fill_mask)
    nsp = in_thread(Client.nsp)
    predict = in_thread(Client.predict)
    tag = in_thread(Client.tag)
    rerank = in_thread(Client.rerank)
    similarity = in_thread(Client.similarity)
    score = in_thread(Client.score)
    answer = in_thread(Client.answer)
    choose = in_thread(Client.choose)
    tokenize = in_thread(Client.tokenize)
    attention = in_thread(Client.attention)


def named_seconds(response: httpx.Response, default: float) -> float:
    """The seconds of Retry-After, or `default` with a random part, so that clients do not all return at once."""
    named = response.headers.get("retry-after", "")
    if named.isascii() and named.isdigit():
        return min(MAX_NAMED_SECONDS, float(named))
    return default * random.uniform(0.5, 1.0)


def read_failure(response: httpx.Response) -> RequestFailed:
    """The service's error of a response, or its first characters if another server sent it."""
    try:
        content = response.json()
        message, code, index = content["error"], content.get("code"), content.get("index")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code, index = f"HTTP {response.status_code}: {response.text[:200]}", None, None
    index = index if isinstance(index, int) else None
    return RequestFailed(str(message), status=response.status_code, code=code, index=index)


def read_answers(response: httpx.Response, spec: Task, count: int) -> Answers:
    """The answer to each of the `count` inputs of a request."""
    try:
        answers = _decode(response, spec, count)
        if len(answers) != count:
            return RequestFailed(f"{response.url} gave {len(answers)} answers to {count} inputs")
    except (ValueError, EOFError, TypeError):
        content = response.text[:200]
        return RequestFailed(f"{response.url} gave no answers of this service, another server listens there: {content}")
    return answers


def _decode(response: httpx.Response, spec: Task, count: int) -> list[Any]:
    if spec.arrays:
        rows: NDArray[np.float32] = np.load(io.BytesIO(response.content), allow_pickle=False)
        sizes = [int(size) for size in response.headers.get(ROWS, "").split(",") if size]
        return np.split(rows, np.cumsum(sizes)[:-1], axis=-2) if sizes else list(rows)
    content = response.json()
    answers = [content] if spec.unwraps and count == 1 else content
    if not isinstance(answers, list):
        raise TypeError(type(answers).__name__)
    return answers
