"""The tasks of an artifact, and the HTTP application over them, in the test's own process: no start of a service."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, cast

import httpx

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.engine.runner import ModelRunner
from packbert.service.errors import ServiceError
from packbert.service.http.app import create_app
from packbert.service.observability.metrics import Metrics
from packbert.service.scheduling.request import Chunk
from packbert.service.settings import Settings
from packbert.service.tasks.flow import Read, TaskResult, Tasks, answer_request
from tests.service.engine.runners import open_runner
from tests.service.fakes import InstantQueue, OnlyModel, opened
from tests.service.tokenization.reading import open_tokenizer


class RunnerQueue(InstantQueue):
    """Runs each chunk in one batch. The last request's deadline is kept, in seconds."""

    deadline = 0.0

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def answer(self, chunk: Chunk[Any]) -> list[Row]:
        self.deadline = chunk.request.deadline
        return self.run(chunk.work)

    def run(self, work: Sequence[Tokens]) -> list[Row]:
        rows, _ = self.runner.run_sync(work)
        assert all(rows)
        return [row for row in rows if row is not None]


@contextmanager
def open_tasks(artifact: Artifact, settings: Settings) -> Iterator[Tasks]:
    with open_runner(artifact, threads=1) as runner, open_tokenizer(artifact) as tokenizer:
        yield Tasks(
            manifest=artifact.manifest,
            tokenizer=tokenizer,
            queue=cast(Any, RunnerQueue(runner)),
            settings=settings.model_copy(update={"max_inputs": 100}),
        )


def ask_engine(folder: Path, question: Callable[[Tasks], Any], **settings: Any) -> Any:
    """The answer to a question to an engine, with its queue, that has the artifact in `folder`."""
    given = {"token_budget": 256, "threads": 1} | settings

    async def story() -> Any:
        async with opened(ModelEngine(open_artifact(folder), Settings(model=str(folder), **given), Metrics())) as one:
            return await question(one.tasks)

    return asyncio.run(story())


def ask_at_once(folder: Path, asked: Iterable[tuple[Read, Any]], **settings: Any) -> list[TaskResult]:
    """The results of tasks with their requests, which are neighbours in the batches of an engine."""

    async def question(tasks: Tasks) -> list[TaskResult]:
        return await asyncio.gather(*(answer_request(tasks, read, request) for read, request in asked))

    found: list[TaskResult] = ask_engine(folder, question, **settings)
    return found


def values_at_once(folder: Path, *asked: tuple[Read, Any], **settings: Any) -> list[Any]:
    """The values of those results."""
    return [one.value for one in ask_at_once(folder, asked, **settings)]


class InProcessModel(OnlyModel):
    """Admits every request, except for `refusals`, each of which one request gets."""

    why_not_ready = ""

    def __init__(self, artifact: Artifact, settings: Settings, tasks: Tasks) -> None:
        self.artifact, self.settings, self.tasks = artifact, settings, tasks
        self.metrics = Metrics()
        self.refusals: list[ServiceError] = []
        self.current, self.users = self, nullcontext()

    @property
    def refuses(self) -> bool:  # type: ignore[override]  # whether a refusal is left
        return bool(self.refusals)

    def refuse(self) -> NoReturn:
        raise self.refusals.pop(0)

    def ready(self) -> str:
        return self.why_not_ready


def client_of(app: Any) -> httpx.AsyncClient:
    """Of an application, on the event loop of the test."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


class InProcessClient:
    """Sends requests to the application, each on an event loop of its own."""

    def __init__(self, model: InProcessModel) -> None:
        self.backend = model
        self.app: Any = create_app(model)  # type: ignore[arg-type]  # models have more members

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def story() -> httpx.Response:
            async with client_of(self.app) as client:
                return await client.request(method, path, **more)

        return asyncio.run(story())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.send("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.send("POST", path, **more)


def ask(client: InProcessClient | httpx.Client, path: str, **body: Any) -> Any:
    """The content of an answer, which is 200."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@contextmanager
def serve_in_process(folder: Path, **settings: str) -> Iterator[InProcessClient]:
    chosen = Settings.from_environment({"BERT_MODEL": str(folder)} | settings)
    artifact = open_artifact(folder).served_as(chosen.served_model_name)
    with open_tasks(artifact, chosen) as tasks:
        yield InProcessClient(InProcessModel(artifact, chosen, tasks))
