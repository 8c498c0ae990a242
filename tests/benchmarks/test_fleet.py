"""The simulated fleet: every request ends once, a replica decides as the real batcher, a seed gives one result."""

import asyncio
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from benchmarks.fleet.experiments import BULK, SINGLES, curve
from benchmarks.fleet.machines import MEASURED, RESULTS, Machine, measured
from benchmarks.fleet.replica import text
from benchmarks.fleet.simulation import BALANCERS, RETRIES, Arrival, Fleet, Outcome, Simulation, poisson
from benchmarks.fleet.tables import DOCUMENT, rewrite
from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.errors import Overloaded, ServiceError
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.watchdog import Watchdog
from tests.service.fakes import FakeTime, make_queue, play

INT8 = measured("BERT-base int8")


def through_the_batcher(machine: Machine, arrivals: Sequence[Arrival], fleet: Fleet) -> Outcome:
    """The same arrivals through the service's own batcher, on a loop whose time is fake."""
    outcome = Outcome()

    async def story(time: FakeTime) -> None:
        async def run(sequences: Sequence[Tokens], *, all_cores: bool) -> tuple[Sequence[Row | None], Batch]:
            size = sum(map(len, sequences))
            await asyncio.sleep(machine.run_seconds(size, all_cores=all_cores))
            batch = Batch(feeds={}, outputs=frozenset(), spans={}, tokens=size, slots=size, owners=sequences)
            return [cast("Row", {})] * len(sequences), batch

        queue = make_queue(
            token_budget=machine.token_budget,
            max_tokens=200_000,
            max_wait_seconds=fleet.max_wait_seconds,
            tokens_per_second=machine.tokens_per_second,
        )
        watchdog = Watchdog(clock=time.clock, side_by_side=machine.concurrency.per_core)
        batcher = Batcher(run, queue, clock=time.clock, concurrency=machine.concurrency, watchdog=watchdog)
        serving = asyncio.create_task(batcher.serve())

        async def ask(arrived: float, lengths: Sequence[int]) -> None:
            await asyncio.sleep(arrived)
            try:
                await batcher.submit([text(n) for n in lengths], timeout_seconds=fleet.timeout_seconds)
                outcome.waits.append((arrived, time.now - arrived + machine.overhead_seconds))
            except Overloaded:
                outcome.refused.append(arrived)
            except ServiceError:
                outcome.expired += 1

        await asyncio.gather(*(ask(*arrival) for arrival in arrivals))
        batcher.close("the end")
        await serving

    play(story)
    return outcome


@pytest.mark.parametrize("name", ["BERT-base int8", "BERT-base fp32"])
@pytest.mark.parametrize(("load", "max_wait", "timeout"), [(0.5, 30.0, 60.0), (1.5, 0.5, 60.0), (1.5, 30.0, 0.4)])
def test_a_replica_decides_as_the_batcher(name: str, load: float, max_wait: float, timeout: float) -> None:
    machine = replace(measured(name), refusal_seconds=0.0)  # a refusal takes no fake time
    fleet = Fleet(machines=[machine], max_wait_seconds=max_wait, timeout_seconds=timeout)
    arrivals = list(poisson(load * machine.tokens_per_second / 36, 5.0, BULK))[1:]  # a loop begins after 0
    simulated, real = Simulation(fleet).run(arrivals), through_the_batcher(machine, arrivals, fleet)
    assert (simulated.refused, simulated.expired) == (real.refused, real.expired)
    assert [arrived for arrived, _ in sorted(simulated.waits)] == [arrived for arrived, _ in sorted(real.waits)]
    assert [wait for _, wait in sorted(simulated.waits)] == pytest.approx([wait for _, wait in sorted(real.waits)])
    assert bool(real.refused) == (load > 1)
    assert bool(real.expired) == (timeout < 1)


@pytest.mark.parametrize("policy", BALANCERS)
@pytest.mark.parametrize("retries", RETRIES)
def test_every_request_ends_once(policy: str, retries: str) -> None:
    fleet = Fleet(
        machines=[INT8, INT8.scaled(2.0, 2.0)],
        policy=policy,
        balancers=2,
        retries=retries,
        max_wait_seconds=0.3,
        timeout_seconds=2.5,
    )
    arrivals = list(poisson(400, 2.0, BULK))
    simulation = Simulation(fleet)
    outcome = simulation.run(arrivals)
    assert len(outcome.waits) + len(outcome.refused) + outcome.expired == len(arrivals)
    assert len({arrived for arrived, _ in outcome.waits} | set(outcome.refused)) == len(arrivals) - outcome.expired
    assert [(len(one.queue), one.queue.tokens) for one in simulation.replicas] == [(0, 0)] * 2
    assert [sum(loads) for loads in simulation._loads] == [0, 0]  # what the balancers believe
    assert (len(outcome.attempts) > len(arrivals)) == (retries != "none")


def test_a_seed_gives_one_result() -> None:
    arrivals = list(poisson(400, 2.0, BULK))

    def run(seed: int) -> Outcome:
        return Simulation(Fleet(machines=[INT8] * 3, policy="random", seed=seed)).run(arrivals)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_retry_budget_bounds_the_attempts() -> None:
    arrivals = list(poisson(1000, 3.0, SINGLES))
    fleet = Fleet(machines=[INT8], retries="Retry-After, budget", max_wait_seconds=0.3, timeout_seconds=30.0)
    assert len(arrivals) < len(Simulation(fleet).run(arrivals).attempts) <= 1.1 * len(arrivals)


@pytest.mark.parametrize("name", ["BERT-base fp32", "BERT-base int8"])
def test_the_stored_curve_is_that_of_this_code(name: str) -> None:
    found = json.loads((RESULTS / "fleet.json").read_text("utf-8"))["result"]
    again = curve(name, measured(name).scaled(*found["factors"][name]))
    assert [pytest.approx(row, rel=1e-6) for row in again] == found["curve"][name]


def test_the_fit_is_near_the_measured_curve() -> None:
    found = json.loads((RESULTS / "fleet.json").read_text("utf-8"))["result"]["curve"]
    ratios = [row["p50 simulated"] / row["p50"] for name in MEASURED for row in found[name]]
    assert statistics.median(ratios) == pytest.approx(1, abs=0.2)


def test_the_command_changes_nothing_in_the_document() -> None:
    written = DOCUMENT.read_text("utf-8")
    assert rewrite(written) == written
