"""Swaps and loads of several models in one process, at moments that a client of a service cannot choose."""

import asyncio
import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.client import values_of
from packbert.service.engine.device import find_artifact
from packbert.service.engine.engine import ModelEngine
from packbert.service.errors import Invalid, Unavailable
from packbert.service.http.dialects import native
from packbert.service.http.validation import validate
from packbert.service.models import Models, ServedModel, make_models
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from packbert.service.tasks.flow import answer_request
from tests.export.goldens import Exported
from tests.service.engine.changed_files import variants
from tests.service.fakes import on_loop, opened, until
from tests.service.test_metrics import render_metrics

OLD, NEW = "bert", "bert-labels"


@pytest.fixture(scope="module")
def folders(exported: Exported) -> Mapping[str, Path]:
    return {name: exported(name).root for name in (OLD, NEW)}


def make_service(one: Path, two: Path, **more: str) -> Models:
    """A service of two models in this process that is not open yet."""
    given = {"BERT_MODELS": f"one={one} two={two}", "BERT_TOKEN_BUDGET": "64", "BERT_THREADS": "1"}
    settings = Settings.from_environment(given | more)
    choices = [find_artifact(settings.of_model(name, str(folder))) for name, folder in (("one", one), ("two", two))]
    return make_models(settings, choices, Metrics())


def served(folders: Mapping[str, Path], **more: str) -> Models:
    """`make_service`, whose models are both OLD."""
    return make_service(folders[OLD], folders[OLD], **more)


async def embed(model: ServedModel) -> Any:
    spec = native.ROUTES["/embed"]
    request = validate(spec.request_model, {"inputs": "the cat"})
    with model.current.users:
        return (await answer_request(model.current.tasks, spec.task, request)).value


async def put_out(engine: ModelEngine) -> None:
    """As a load of another model does with the least recently used one."""
    device = engine.device
    async with device.loading:
        device.loaded = {engine: None} | device.loaded
        device.memory_limit = engine.memory_bytes + sum(one.memory_bytes for one in device.loaded) - 1
        await device._make_room(engine)
        device.memory_limit = 2**40


@on_loop
async def test_a_wrong_model_that_was_put_out_of_memory_is_checked_again(folders: Mapping[str, Path]) -> None:
    models = served(folders, BERT_MEMORY_LIMIT="4GiB")
    engine = models.default.current
    engine.self_check_seconds = 0.02
    await models.open()
    right, engine._canary.vector = engine._canary.vector, engine._canary.vector + 1
    await engine._canary.check()
    assert "wrong answers" in engine.batcher.suspended
    await put_out(engine)
    engine._canary.vector = right
    await until(lambda: not engine.readiness())
    assert len(await embed(models.default)) == 1
    await models.close()


@on_loop
async def test_a_model_whose_last_request_has_been_cancelled_is_not_loaded(folders: Mapping[str, Path]) -> None:
    async with opened(served(folders, BERT_MEMORY_LIMIT="4GiB")) as models:
        engine = models.default.current
        await put_out(engine)
        async with engine.device.loading:
            asked = asyncio.create_task(embed(models.default))
            await until(lambda: engine.batcher.model.aside == 1)
            asked.cancel()
            await asyncio.wait([asked])
        assert len(await embed(models.group["two"])) == 1
        assert engine not in engine.device.loaded


@on_loop
async def test_requests_of_the_model_before_a_swap_stay_in_the_gauges(folders: Mapping[str, Path]) -> None:
    async with opened(served(folders)) as models:
        before = models.default.current
        with models.default.current.users:
            request = before.batcher.admit(5, timeout_seconds=60.0)
            swapping = asyncio.create_task(models.default.swap(str(folders[NEW])))
            await until(lambda: models.default.current is not before)
            values = values_of((await models.render_metrics(""))[0].decode())
            assert (values["bert_inflight_requests"], values["bert_waiting_requests"]) == (1, 1)
            before.batcher.leave(request)
        await swapping
        values = values_of((await models.render_metrics(""))[0].decode())
        assert (values["bert_inflight_requests"], values["bert_waiting_requests"]) == (0, 0)


@on_loop
async def test_a_swap_whose_old_model_is_put_out_stays_in_memory(folders: Mapping[str, Path]) -> None:
    async with opened(served(folders, BERT_MEMORY_LIMIT="4GiB")) as models:
        old = models.default.current
        with models.default.current.users:  # a request that lasts
            swapping = asyncio.create_task(models.default.swap(str(folders[NEW])))
            await until(lambda: models.default.current is not old)
            await put_out(old)
            assert old not in old.device.loaded
            assert render_metrics(models.metrics)['bert_model_in_memory{model="one"}'] == 1
        assert await swapping
        assert render_metrics(models.metrics)['bert_model_in_memory{model="one"}'] == 1


@on_loop
async def test_a_model_closed_while_it_is_put_out_leaves_no_task(folders: Mapping[str, Path]) -> None:
    models, before = served(folders, BERT_MEMORY_LIMIT="4GiB"), asyncio.all_tasks()
    await models.open()
    engine = models.default.current
    may_run, run = asyncio.Event(), engine.batcher.run

    async def wait_and_run(sequences: Any, *, all_cores: bool) -> Any:
        await may_run.wait()
        return await run(sequences, all_cores=all_cores)

    engine.batcher.run = wait_and_run
    asked = asyncio.create_task(embed(models.default))
    await until(lambda: engine.batcher.running == 1)
    putting_out = asyncio.create_task(put_out(engine))
    await until(lambda: engine not in engine.device.loaded)
    closing = asyncio.create_task(engine.close())
    await until(lambda: engine not in engine.device.engines)
    may_run.set()
    await asyncio.wait([putting_out, closing, asked])
    await models.close()
    assert asyncio.all_tasks() == before


@on_loop
async def test_a_service_that_leaves_ends_no_swap_and_stays_not_ready(folders: Mapping[str, Path]) -> None:
    async with opened(served(folders)) as models:
        swapping = asyncio.create_task(models.default.swap(str(folders[NEW])))
        await until(models.default._swapping.locked)
        models.leave()
        with pytest.raises(Unavailable, match="the server is shutting down"):
            await swapping
        assert models.default.ready() == "draining"
        assert len(await embed(models.default)) == 1


@on_loop
async def test_bert_ready_is_that_of_ready_while_another_model_loads(folders: Mapping[str, Path]) -> None:
    models = served(folders)
    for name, model in models.group.items():
        await model.current.open()
        is_ready = name == "two"
        assert (models.default.ready() == "") == is_ready
        assert f"bert_ready {float(is_ready)}" in (await models.render_metrics(""))[0].decode()
    await models.close()


def engines_in_memory(besides: frozenset[ModelEngine] = frozenset()) -> frozenset[ModelEngine]:
    gc.collect()
    return frozenset(one for one in gc.get_objects() if type(one) is ModelEngine) - besides


async def refusal(model: ServedModel, source: Path) -> str:
    """Keeps nothing of the error."""
    try:
        await model.swap(str(source))
    except Invalid as error:
        return error.message
    return ""


@on_loop
async def test_neither_the_first_model_nor_one_that_is_refused_stays_in_memory(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    (one, other), wrong = variants(folders[OLD], tmp_path)
    of_other_tests = engines_in_memory()
    async with opened(served(folders)) as models:
        for source in (one, other):
            assert await models.default.swap(str(source))
            assert "the self-test failed" in await refusal(models.default, wrong)
            # a thread that has just answered may still hold its work
            await until(lambda: len(engines_in_memory(of_other_tests)) == len(models.group))
