"""The tasks of an API worker with a real engine behind the socket give the bytes of the engine's own tasks."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from packbert.service.artifact import open_artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.engine.local_backend import LocalBackend
from packbert.service.observability import Metrics
from packbert.service.settings import Settings
from packbert.service.tasks import embed as embed_task
from packbert.service.tasks import fill_mask as fill_mask_task
from packbert.service.tasks import pairs as nsp_task
from packbert.service.tasks import predict as predict_task
from packbert.service.tasks import tag as tag_task
from packbert.service.tasks.base import TaskResult, Tasks
from packbert.service.tasks.fill_mask import FillMaskRequest
from packbert.service.tasks.inputs import EmbedRequest, NspRequest, TruncationFields
from packbert.service.tasks.likelihood import score_sentences
from packbert.service.tasks.predict import PredictRequest, TagRequest
from packbert.service.workers.api_worker import RemoteBackend
from packbert.service.workers.child import WorkerSpec, open_pipe
from packbert.service.workers.engine_worker import EngineWorker

TEXTS = ["the cat", "我爱北京。", "a " * 100, "it"]
Ask = Callable[[Tasks], Awaitable[TaskResult]]


def embed(pooling: str) -> Ask:
    return lambda tasks: embed_task.embed(
        tasks, EmbedRequest.model_validate({"inputs": TEXTS, "pooling": pooling}), timeout_seconds=60
    )


def fill_mask(**more: Any) -> Ask:
    body = {"inputs": ["the [MASK] is big", "a [MASK] and a [MASK]"]} | more
    return lambda tasks: fill_mask_task.fill_mask(tasks, FillMaskRequest.model_validate(body), timeout_seconds=60)


def nsp(tasks: Tasks) -> Awaitable[TaskResult]:
    return nsp_task.nsp(
        tasks, NspRequest.model_validate({"inputs": [["the cat", "it"], ["a", "b"]]}), timeout_seconds=60
    )


def predict(tasks: Tasks) -> Awaitable[TaskResult]:
    return predict_task.predict(
        tasks, PredictRequest.model_validate({"inputs": [[text] for text in TEXTS]}), timeout_seconds=60
    )


def score(tasks: Tasks) -> Awaitable[TaskResult]:
    return score_sentences(tasks, TEXTS, TruncationFields(), "within_word", timeout_seconds=60)


def tag(tasks: Tasks) -> Awaitable[TaskResult]:
    return tag_task.tag(tasks, TagRequest.model_validate({"inputs": TEXTS}), timeout_seconds=60)


ASKED: dict[str, list[Ask]] = {
    "bert": [embed("cls"), embed("pooler"), embed("mean"), fill_mask(top_k=3), fill_mask(targets=["cat", "dog"]), nsp],
    "bert several passes": [
        fill_mask(targets=["cat", "unaffable", "walked"]),
        fill_mask(joint=True, beam=3, top_k=2),
        score,
    ],
    "bert-labels": [predict],
    "bert-tags": [tag],
}


@pytest.mark.parametrize("name", ASKED)
def test_every_task_gives_the_same_bytes_as_in_one_process(tmp_path: Path, name: str, exported: Callable) -> None:
    root = exported(name.split()[0]).root
    settings = Settings(artifact=root, token_budget=64, threads=1, api_processes=1)
    artifact = open_artifact(root)

    async def story() -> None:
        local = LocalBackend(artifact, settings, Metrics())
        await local.open()
        engine = ModelEngine(artifact, settings, Metrics())
        with socket.socket(socket.AF_UNIX) as listener:
            read_end, write_end = open_pipe()
            spec = WorkerSpec(
                name="api-0",
                folder=str(tmp_path),
                artifact=str(root),
                device="cpu",
                plain=False,
                degraded="a reason",
                listener=listener.fileno(),
                lifeline=0,
                heartbeat=write_end,
            )
            listener.bind(str(spec.socket))
            listener.listen()
            worker = EngineWorker(engine, write_end)
            running = asyncio.create_task(worker.run(listener.dup()))
            backend = RemoteBackend(spec, settings, artifact, Metrics())
            await backend.open()
            assert backend.degraded == "a reason"
            while await backend.ready():
                pass  # the model is loading
            for ask in ASKED[name]:
                near = await ask(local.admit(0))
                far = await asyncio.gather(*(ask(backend.admit(0)) for _ in range(3)))
                assert [as_bytes(one) for one in far] == [as_bytes(near)] * 3
            assert list(await backend.info()) == list(await local.info())
            await backend.close()
            await local.close()
            worker._finish(0)
            assert await running == 0
            os.close(read_end)
            os.close(write_end)

    asyncio.run(asyncio.wait_for(story(), 60))


def as_bytes(done: TaskResult) -> bytes:
    return orjson.dumps([done.value, done.truncated, done.tokens], option=orjson.OPT_SERIALIZE_NUMPY)
