"""What is simulated for docs/operate/fleet.md: the measured curve, replicas for a load, balancers, retries."""

import itertools
import json
import math
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from benchmarks.fleet.machines import MEASURED, MIX, RESULTS, Machine, measured, read
from benchmarks.fleet.simulation import BALANCERS, RETRIES, Arrival, Fleet, Outcome, Simulation, poisson
from benchmarks.harness.mixes import MIXES

SINGLES = [[length] for length in MIXES[MIX]]
_DRAW = random.Random(5)
BULK = [one * (32 if _DRAW.random() < 0.05 else 1) for one in SINGLES * 20]  # one in 20 has 32 texts
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
FACTORS = (0.75, 1.0, 1.5, 2.0), (0.9, 1.0, 1.1, 1.2)  # of the fixed part, of a token
LOADS, BOUNDS_MS = (100, 1_000, 10_000), (100, 150, 250)
REPLICAS, BUSY, WARM_UP = 8, 0.8, 0.1  # of the comparison of balancers; of the capacity; share that does not count
MANY = 60  # replicas
SURGE, SURGE_SECONDS, BEFORE_SECONDS, AFTER_SECONDS = 2.5, 5.0, 5.0, 15.0  # the first is a factor


def texts_per_second(machine: Machine, lengths: Sequence[Sequence[int]]) -> float:
    """Requests a second in full batches, each of the mean length."""
    batch = machine.token_budget / machine.run_seconds(machine.token_budget, all_cores=False)
    return batch * machine.concurrency.side_by_side * len(lengths) / sum(map(sum, lengths))


def fit(name: str) -> tuple[float, float]:
    """Factors of a run's two parts with which the medians of the measured Poisson streams come out best.

    A load generator shares the cores with the server there, and its cost depends on how it sends.
    """
    content, machine = read(name), measured(name)

    def error(factors: tuple[float, float]) -> float:
        scaled, seconds = machine.scaled(*factors), content["open_seconds"]
        streams = content["result"][MIX]["open_loop"]
        medians = [(_stream(scaled, one["offered"], seconds).percentile(0.5) * 1000, one["p50 ms"]) for one in streams]
        return sum(math.log(simulated / found) ** 2 for simulated, found in medians)

    return min(itertools.product(*FACTORS), key=error)


def curve(name: str, machine: Machine) -> list[dict[str, float]]:
    """Milliseconds of each measured stream, and of the same arrivals in simulated time."""
    content = read(name)
    streams = [(one, content["open_seconds"]) for one in content["result"][MIX]["open_loop"]]
    if name == "BERT-base int8":
        loadgen = json.loads((RESULTS / "loadgen-base-int8.json").read_text("utf-8"))
        server = loadgen["result"][MIX]["Server"]
        streams.append((server | {"offered": server["scheduled/s"]}, loadgen["seconds"]))
    rows = []
    for one, seconds in streams:
        outcome = _stream(machine, one["offered"], seconds)
        row = {"offered": one["offered"]}
        for percentile, share in PERCENTILES.items():
            row |= {percentile: one[f"{percentile} ms"], f"{percentile} simulated": 1000 * outcome.percentile(share)}
        rows.append(row)
    return rows


def replicas(machine: Machine) -> dict[str, dict[str, int]]:
    """The fewest replicas by load (requests a second) and bound of the p99 (ms), one text a request."""
    found: dict[str, dict[str, int]] = {}
    for load in LOADS:
        arrivals = list(poisson(load, max(5.0, min(60.0, 30_000 / load)), SINGLES))

        @cache
        def p99(number: int, arrivals: Sequence[Arrival] = arrivals) -> float:
            return 1000 * _settled(Fleet(machines=[machine] * number), arrivals)[1].percentile(0.99)

        def within(bound: int, number: int, p99: Callable[[int], float] = p99) -> bool:
            return p99(number) <= bound

        least = math.ceil(load / texts_per_second(machine, SINGLES))
        numbers = range(least, 2 * least + 4)
        found[str(load)] = {
            str(bound): numbers[bisect_left(numbers, True, key=partial(within, bound))] for bound in BOUNDS_MS
        }
    return found


def balancers(machine: Machine) -> dict[str, dict[str, list[float]]]:
    """p50 and p99 in ms by policy and load; of requests with one text, and of those with 32."""
    slow = [machine.scaled(2.0, 2.0), *[machine] * (REPLICAS - 1)]
    scenarios = {
        "one text": ([machine] * REPLICAS, SINGLES),
        "one in 20 has 32": ([machine] * REPLICAS, BULK),
        "one replica at half speed": (slow, SINGLES),
    }
    found: dict[str, dict[str, list[float]]] = {}
    for scenario, (machines, lengths) in scenarios.items():
        arrivals = list(poisson(BUSY * sum(texts_per_second(one, lengths) for one in machines), 30.0, lengths))
        for policy in BALANCERS:
            for texts, outcome in sorted(_settled(Fleet(machines=machines, policy=policy), arrivals).items()):
                name = scenario if texts == 1 else f"{scenario}: those"
                found.setdefault(policy, {})[name] = [1000 * outcome.percentile(share) for share in (0.5, 0.99)]
    return found


def instances(machine: Machine) -> dict[str, list[float]]:
    """p50 and p99 in ms at 10,000 requests/s to MANY replicas, by policy and instances of the balancer."""
    arrivals = list(poisson(10_000, 5.0, SINGLES))
    found = {}
    for policy, balancing in itertools.product(("round robin", "two choices, requests", "least requests"), (1, 16)):
        outcome = _settled(Fleet(machines=[machine] * MANY, policy=policy, balancers=balancing), arrivals)[1]
        found[f"{policy}, {balancing}"] = [1000 * outcome.percentile(share) for share in (0.5, 0.99)]
    return found


def retries(machine: Machine) -> dict[str, dict[str, float]]:
    """A surge to SURGE of the capacity of two replicas that are otherwise BUSY, by what refused clients do."""
    machines = [machine] * 2
    capacity = 2 * texts_per_second(machine, SINGLES)
    end = BEFORE_SECONDS + SURGE_SECONDS
    arrivals = [
        *poisson(BUSY * capacity, BEFORE_SECONDS, SINGLES),
        *poisson(SURGE * capacity, SURGE_SECONDS, SINGLES, begin=BEFORE_SECONDS),
        *poisson(BUSY * capacity, AFTER_SECONDS, SINGLES, begin=end),
    ]
    found = {}
    for kind in RETRIES:
        fleet = Fleet(machines=machines, retries=kind, timeout_seconds=10.0, max_wait_seconds=1.0)
        outcome = Simulation(fleet).run(arrivals)
        late = [arrived for arrived, wait in outcome.waits if arrived > end and wait > 1.0]
        later = [arrived for arrived in outcome.refused if arrived > end]
        answers = sum(BEFORE_SECONDS < arrived + wait <= end + 5 for arrived, wait in outcome.waits)
        found[kind] = {
            "attempts a request": len(outcome.attempts) / len(arrivals),
            "attempts/s at the peak": float(max(Counter(map(int, outcome.attempts)).values())),
            "answered": len(outcome.waits) / len(arrivals),
            "goodput": answers / (SURGE_SECONDS + 5) / capacity,
            "p99 s": outcome.percentile(0.99),
            "recovery s": max([end, *late, *later]) - end,
        }
    return found


def run_all() -> dict[str, Any]:
    factors = {name: fit(name) for name in MEASURED}
    machines = {name: measured(name).scaled(*factors[name]) for name in MEASURED}
    machine = machines["BERT-base int8"]
    return {
        "factors": factors,
        "texts_per_second": {name: texts_per_second(one, SINGLES) for name, one in machines.items()},
        "curve": {name: curve(name, one) for name, one in machines.items()},
        "replicas": replicas(machine),
        "balancers": balancers(machine),
        "instances": instances(machine),
        "retries": retries(machine),
    }


def _stream(machine: Machine, rate: float, seconds: float) -> Outcome:
    return Simulation(Fleet(machines=[machine])).run(list(poisson(rate, seconds, SINGLES)))


def _settled(fleet: Fleet, arrivals: Sequence[Arrival]) -> dict[int, Outcome]:
    """By texts in a request, without the arrivals of the first part, which find empty replicas."""
    outcome = Simulation(fleet).run(arrivals)
    texts = {arrived: len(lengths) for arrived, lengths in arrivals[int(WARM_UP * len(arrivals)) :]}
    waits = [(texts[one[0]], one) for one in outcome.waits if one[0] in texts]
    return {count: Outcome(waits=[one for size, one in waits if size == count]) for count in set(texts.values())}
