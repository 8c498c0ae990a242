"""Ray Serve: replicas of the engine with all routes of the service, as many as the tokens that wait need.

cd deploy/ray && serve run bert_serve:app model=/models/bert threads=4 max_replicas=8
"""

import math
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from packbert import Engine, make_app

TARGET_BUSY = 0.8  # of each replica
TARGET_WAIT_SECONDS = 1.0  # of computing what waits: as much work as a busy replica


def count_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """An autoscaling policy: busy replicas, and further ones for the tokens that wait. Ray applies its delays to it."""
    loads = [sum(one.values()) for one in context.aggregated_metrics.values()]  # of "busy" and of "waiting"
    return max(1, math.ceil(round(sum(loads) / TARGET_BUSY, 6))), {}


@serve.deployment(max_ongoing_requests=1000, health_check_period_s=5, graceful_shutdown_timeout_s=30)
@serve.ingress()
class BertService:
    """One engine. Requests that arrive together share its batches, so it takes many at a time."""

    async def __init__(self, model: str, threads: int) -> None:
        self.engine = Engine.from_model(model, threads=threads)
        await self.engine.open()  # a failed load fails the replica

    def __serve_build_asgi_app__(self) -> Any:
        return make_app(self.engine)

    def check_health(self) -> None:
        if not (health := self.engine.health()).ready:
            raise RuntimeError(health.status)

    def record_autoscaling_stats(self) -> dict[str, float]:
        load = self.engine.load()
        return {"busy": load.busy, "waiting": load.waiting_seconds / TARGET_WAIT_SECONDS}


def app(arguments: dict[str, str]) -> Any:
    """`model` is a folder that every node has; `threads` are the CPUs of one replica."""
    threads = int(arguments.get("threads", 1))
    scaling = AutoscalingConfig(
        min_replicas=int(arguments.get("min_replicas", 1)),
        max_replicas=int(arguments.get("max_replicas", 4)),
        policy=AutoscalingPolicy(policy_function=count_replicas),
    )
    options = {"autoscaling_config": scaling, "ray_actor_options": {"num_cpus": threads}}
    return BertService.options(**options).bind(arguments["model"], threads)
