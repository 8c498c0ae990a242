"""What can be checked of deploy/ray without Ray: its policy, its health check, what it imports, what its page says.

`make test-ray` runs it on a cluster.
"""

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

import packbert
from tests import paths

FOLDER = paths.ROOT / "deploy" / "ray"


class Named(SimpleNamespace):
    """What Ray makes of keyword arguments, as they were."""


class Deployment:
    """A class under `serve.deployment`, with what was asked for it."""

    def __init__(self, kind: Any, **options: Any) -> None:
        self.kind, self.asked = kind, options

    def options(self, **options: Any) -> "Deployment":
        return Deployment(self.kind, **self.asked | options)

    def bind(self, *arguments: Any) -> tuple["Deployment", tuple[Any, ...]]:
        return self, arguments


def deployment(**options: Any) -> Callable[[Any], Deployment]:
    return lambda kind: Deployment(kind, **options)


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    """bert_serve.py with stand-ins for the few names of Ray that it uses."""
    serve, config, ray = ModuleType("ray.serve"), ModuleType("ray.serve.config"), ModuleType("ray")
    vars(serve).update(deployment=deployment, ingress=lambda: lambda kind: kind)
    vars(config).update(AutoscalingConfig=Named, AutoscalingPolicy=Named, AutoscalingContext=Named)
    vars(ray).update(serve=serve)
    names = {"ray": ray, "ray.serve": serve, "ray.serve.config": config}
    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in names.items():
            patch.setitem(sys.modules, name, stand_in)
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("bert_serve")
    del sys.modules["bert_serve"]


@pytest.mark.parametrize(
    ("busy", "waiting", "replicas"),
    [
        ([], [], 1),
        ([0.0], [0.0], 1),
        ([0.8], [0.0], 1),
        ([0.9], [0.0], 2),
        ([0.5, 0.5], [0.0, 0.0], 2),
        ([0.1, 0.1, 0.1], [0.0, 0.0, 0.0], 1),
        ([1.0], [3.0], 5),
        ([1.0, 1.0], [3.0, 1.0], 8),
    ],
)
def test_replicas_follow_how_busy_they_are_and_the_tokens_that_wait(
    module: ModuleType, busy: list[float], waiting: list[float], replicas: int
) -> None:
    metrics = {name: dict(enumerate(values)) for name, values in (("busy", busy), ("waiting", waiting))}
    assert module.count_replicas(Named(aggregated_metrics=metrics if busy else {})) == (replicas, {})


def test_the_application_has_the_arguments_of_its_command(module: ModuleType) -> None:
    deployed, arguments = module.app(
        {"model": "/models/bert", "threads": "4", "min_replicas": "2", "max_replicas": "8"}
    )
    scaling = deployed.asked["autoscaling_config"]
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 8)
    assert scaling.policy.policy_function is module.count_replicas
    assert deployed.asked["ray_actor_options"] == {"num_cpus": 4}
    assert arguments == ("/models/bert", 4)


def test_a_replica_answers_reports_its_load_and_its_health(
    module: ModuleType, bert_artifact: Path, server: httpx.Client
) -> None:
    expected = server.post("/embed", json={"inputs": "my dog"}).content
    make: Any = module.BertService.kind

    async def story() -> None:
        replica = make.__new__(make)
        await replica.__init__(str(bert_artifact), 1)
        transport = httpx.ASGITransport(replica.__serve_build_asgi_app__())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post("/embed", json={"inputs": "my dog"})).content == expected
        replica.check_health()
        load = replica.record_autoscaling_stats()
        assert sorted(load) == ["busy", "waiting"]
        assert load["waiting"] == 0
        await replica.engine.close()
        with pytest.raises(RuntimeError, match="shutting down"):
            replica.check_health()

    asyncio.run(story())


def test_only_public_names_are_used(module: ModuleType) -> None:
    used = {name for name in packbert.__all__ if name in vars(module)}
    assert used == {"Engine", "make_app"}
    assert all("packbert." not in path.read_text("utf-8") for path in FOLDER.glob("*.py"))
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert "serve run bert_serve:app model=" in readme
    assert "python deploy/ray/bert_bulk.py in.parquet out.parquet --model" in readme
