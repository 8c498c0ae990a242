"""The tasks of an API worker with a real engine behind the socket give the bytes of the engine's own tasks."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.service.artifact import Artifact, open_artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.engine.local_backend import LocalBackend
from packbert.service.errors import InferenceFailed
from packbert.service.observability.metrics import Metrics
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
from tests.service.fakes import submit

TEXTS = ["the cat", "我爱北京。", "a " * 100, "it"]
Ask = Callable[[Tasks], Awaitable[TaskResult]]


def embed(pooling: str) -> Ask:
    return lambda tasks: embed_task.embed(tasks, EmbedRequest.model_validate({"inputs": TEXTS, "pooling": pooling}))


def fill_mask(**more: Any) -> Ask:
    body = {"inputs": ["the [MASK] is big", "a [MASK] and a [MASK]"]} | more
    return lambda tasks: fill_mask_task.fill_mask(tasks, FillMaskRequest.model_validate(body))


def nsp(tasks: Tasks) -> Awaitable[TaskResult]:
    return nsp_task.nsp(tasks, NspRequest.model_validate({"inputs": [["the cat", "it"], ["a", "b"]]}))


def predict(tasks: Tasks) -> Awaitable[TaskResult]:
    return predict_task.predict(tasks, PredictRequest.model_validate({"inputs": [[text] for text in TEXTS]}))


def score(tasks: Tasks) -> Awaitable[TaskResult]:
    return score_sentences(tasks, TEXTS, TruncationFields(), "within_word")


def tag(tasks: Tasks) -> Awaitable[TaskResult]:
    return tag_task.tag(tasks, TagRequest.model_validate({"inputs": TEXTS}))


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


@asynccontextmanager
async def start(root: Path, folder: Path) -> AsyncIterator[tuple[RemoteBackend, ModelEngine, Settings, Artifact]]:
    """A loaded engine worker and the backend of an API worker, with a socket between them."""
    settings = Settings(artifact=root, token_budget=64, threads=1, api_processes=1)
    artifact = open_artifact(root)
    engine = ModelEngine(artifact, settings, Metrics())
    with socket.socket(socket.AF_UNIX) as listener:
        read_end, write_end = open_pipe()
        spec = WorkerSpec(
            name="api-0",
            folder=str(folder),
            models={artifact.manifest.name: str(root)},
            device="cpu",
            degraded="a reason",
            listener=listener.fileno(),
            lifeline=0,
            heartbeat=write_end,
        )
        listener.bind(str(spec.socket))
        listener.listen()
        worker = EngineWorker([engine], write_end)
        running = asyncio.create_task(worker.run(listener.dup()))
        backend = RemoteBackend(spec, settings, artifact, Metrics())
        await backend.open()
        while await backend.ready():
            pass  # the model is loading
        yield backend, engine, settings, artifact
        await backend.close()
        worker._finish(0)
        assert await running == 0
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("name", ASKED)
def test_every_task_gives_the_same_bytes_as_in_one_process(tmp_path: Path, name: str, exported: Callable) -> None:
    async def story() -> None:
        async with start(exported(name.split()[0]).root, tmp_path) as (backend, _, settings, artifact):
            assert backend.degraded == "a reason"
            local = LocalBackend(artifact, settings, Metrics())
            await local.open()
            for ask in ASKED[name]:
                near = await ask(local.admit(0))
                far = await asyncio.gather(*(ask(backend.admit(0)) for _ in range(3)))
                assert [as_bytes(one) for one in far] == [as_bytes(near)] * 3
            assert list(await backend.info()) == list(await local.info())
            await local.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def tokens(*ids: int, types: int = 0, **fields: Any) -> Tokens:
    """The golden model has 170 words, two segments and 144 positions."""
    of: dict[str, Any] = {
        "ids": np.array(ids, np.int32),
        "types": np.full(len(ids), types, np.int32),
        "outputs": frozenset({"cls"}),
    }
    return Tokens(**of | fields)


FAULTS = {
    "ids reach from 5 to 170; this model has 0 to 169": tokens(5, 170),
    "ids reach from -1 to 5; this model": tokens(5, -1),
    "types reach from 2 to 2; this model has 0 to 1": tokens(5, 6, types=2),
    "positions reach from 0 to 144; this model has 0 to 143": tokens(*[5] * 145),
    "targets reach from 9 to 170; this model": tokens(
        5, 6, masks=(1,), targets=(9, 170), outputs=frozenset({"target_logits"})
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_input_of_a_foreign_tokenizer_costs_a_split_run_and_fails_its_own_request_only(
    tmp_path: Path, bert_artifact: Path, fault: str
) -> None:
    async def story() -> None:
        async with start(bert_artifact, tmp_path) as (backend, engine, _, _):
            queue, faulty = backend.queue, FAULTS[fault]
            texts = [tokens(2, 5 + n, 3) for n in range(8)]
            alone = [await submit(queue, [text]) for text in texts]
            bad = asyncio.ensure_future(submit(queue, [*texts[:2], faulty]))
            parts = queue.begin((), sequences=4, tokens=16, timeout_seconds=60)
            parts.append(texts[:2], 8)
            parts.append([texts[2], faulty], 0)
            together = await asyncio.gather(*(submit(queue, [text]) for text in texts))
            for ended, index in ((bad, 2), (parts.finish(), 3)):
                with pytest.raises(InferenceFailed, match="does not belong to its weights") as caught:
                    await ended
                assert fault in caught.value.message
                assert caught.value.index == index
            for one, other in zip(alone, together, strict=True):
                assert [row["cls"].tobytes() for row in one.rows] == [row["cls"].tobytes() for row in other.rows]
            batcher = engine.batcher
            assert 2 <= batcher.failures.failed_runs <= 8  # 13 sequences: each of the two is found in four halvings
            assert (batcher.counts.failed, batcher.counts.answered) == (2, 16)
            assert not await backend.ready()

    asyncio.run(asyncio.wait_for(story(), 60))


def as_bytes(done: TaskResult) -> bytes:
    return orjson.dumps([done.value, done.truncated, done.tokens], option=orjson.OPT_SERIALIZE_NUMPY)
