"""Clients, a balancer and replicas: sends arrivals, retries what was refused, and counts how each request ends."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.fleet.machines import Machine
from benchmarks.fleet.replica import Events, Replica, text
from packbert.service.errors import ServiceError
from packbert.service.scheduling.request import Request

FIRST_DELAY, BUDGET_SHARE, MAX_BUDGET = 0.1, 0.1, 10.0  # seconds; retries per first attempt; retries saved up
Arrival = tuple[float, Sequence[int]]  # seconds, the tokens of each text
Choose = Callable[[random.Random, int, Sequence[int]], int]  # how many it has chosen, the load of each replica


def _least(draw: random.Random, _: int, load: Sequence[int]) -> int:
    lowest = min(load)
    return draw.choice([index for index, one in enumerate(load) if one == lowest])


def _two_choices(draw: random.Random, _: int, load: Sequence[int]) -> int:
    one, other = draw.randrange(len(load)), draw.randrange(len(load))
    return one if load[one] <= load[other] else other


BALANCERS: dict[str, tuple[Choose, bool]] = {  # whether load is counted in tokens; otherwise in requests
    "round robin": (lambda _, number, load: number % len(load), False),
    "random": (lambda draw, _, load: draw.randrange(len(load)), False),
    "two choices, requests": (_two_choices, False),
    "two choices, tokens": (_two_choices, True),
    "least requests": (_least, False),
    "least tokens": (_least, True),
}
RETRIES = ("none", "fixed delay", "backoff", "Retry-After", "Retry-After, budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`balancers` instances share the arrivals evenly; each knows only of the requests that it has forwarded."""

    machines: Sequence[Machine]
    policy: str = "least tokens"  # of BALANCERS
    balancers: int = 1
    retries: str = "none"  # of RETRIES
    timeout_seconds: float = 60.0  # of a client, retries included
    max_wait_seconds: float = 30.0
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """Every arrival is answered, refused for good or expired. `waits`: arrival and seconds of each answer."""

    waits: list[tuple[float, float]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)  # arrivals
    expired: int = 0
    attempts: list[float] = field(default_factory=list)  # when

    def percentile(self, share: float, *, since: float = 0.0) -> float:
        """Seconds, of the answered that arrived at `since` or later."""
        waits = sorted(wait for arrived, wait in self.waits if arrived >= since)
        return waits[min(len(waits) - 1, int(share * len(waits)))]


class Simulation:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.events, self.outcome = fleet, Events(), Outcome()
        self.replicas = [
            Replica(machine, self.events, self._on_end, max_wait_seconds=fleet.max_wait_seconds)
            for machine in fleet.machines
        ]
        self._draw, self._budget = random.Random(fleet.seed), 0.0
        self._choose, self._in_tokens = BALANCERS[fleet.policy]
        self._loads = [[0] * len(self.replicas) for _ in range(fleet.balancers)]
        self._sent = [instance * len(self.replicas) // fleet.balancers for instance in range(fleet.balancers)]
        self._under_way: dict[Request, tuple[float, list[int], int]] = {}  # arrival, balancer's loads, replica

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        for arrival in arrivals:
            self.events.at(arrival[0], partial(self._attempt, arrival, 0))
        self.events.run()
        return self.outcome

    def _attempt(self, arrival: Arrival, retry: int) -> None:
        arrived, lengths = arrival
        instance = self._draw.randrange(len(self._loads)) if len(self._loads) > 1 else 0
        now, loads = self.events.now, self._loads[instance]
        self.outcome.attempts.append(now)
        if not retry:
            self._budget = min(MAX_BUDGET, self._budget + BUDGET_SHARE)
        index = self._choose(self._draw, self._sent[instance], loads)
        self._sent[instance] += 1
        request = Request([text(n) for n in lengths], arrived=now, deadline=arrived + self.fleet.timeout_seconds)
        loads[index] += self._weight(request)
        self._under_way[request] = arrived, loads, index
        try:
            self.replicas[index].submit(request)
        except ServiceError as error:
            self._forget(request)
            delay = self._delay(retry, error)
            if delay is None or now + delay >= request.deadline:
                self.outcome.refused.append(arrived)
            else:
                self.events.at(now + delay, partial(self._attempt, arrival, retry + 1))

    def _delay(self, retry: int, error: ServiceError) -> float | None:
        """Seconds until the client tries again; None: it gives up."""
        kind = self.fleet.retries
        if kind == "none":
            return None
        if kind == "fixed delay":
            return FIRST_DELAY
        if kind == "backoff":
            return FIRST_DELAY * float(2**retry) * self._draw.uniform(0.5, 1.5)
        if kind == "Retry-After, budget":
            if self._budget < 1:
                return None
            self._budget -= 1
        return float(error.headers["retry-after"])

    def _weight(self, request: Request) -> int:
        return request.size if self._in_tokens else 1

    def _forget(self, request: Request) -> float:
        """The request has left its replica; returns when it arrived at first."""
        arrived, loads, index = self._under_way.pop(request)
        loads[index] -= self._weight(request)
        return arrived

    def _on_end(self, request: Request, answered: bool) -> None:
        index = self._under_way[request][2]
        arrived = self._forget(request)
        overhead = self.replicas[index].machine.overhead_seconds
        if answered:
            self.outcome.waits.append((arrived, self.events.now - arrived + overhead))
        else:
            self.outcome.expired += 1


def poisson(
    rate: float, seconds: float, lengths: Sequence[Sequence[int]], *, begin: float = 0.0, seed: int = 11
) -> Iterator[Arrival]:
    """The arrivals that `benchmarks.harness.streams.open_loop` sends, with the texts of `lengths` in turns."""
    draw, due, number = random.Random(seed), begin, 0
    while due < begin + seconds:
        yield due, lengths[number % len(lengths)]
        number += 1
        due += draw.expovariate(rate)
