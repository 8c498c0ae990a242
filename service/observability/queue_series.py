"""The numbers of a process's queue, read when they are needed, so that they add up."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..scheduling.batcher import Batcher
from ..scheduling.watchdog import RequestCounts
from . import series
from .series import Labels, Series

# bytes that are used, by any process, and bytes in all; None where they cannot be read
DeviceMemory = Callable[[], tuple[int, int] | None]
Reading = tuple[Series, Labels, float]


@dataclass(frozen=True, slots=True, eq=False)
class QueueReader:
    models: Mapping[str, Batcher]  # that share the queue, by name: those that answer now
    device_memory: DeviceMemory | None
    processes: int  # that share the machine, each with a queue

    def read(self) -> Iterable[Reading]:
        batchers = self.models.values()
        yield from _by_outcome(series.QUEUE_REQUESTS, (), [one.counts for one in batchers])
        yield from _by_outcome(series.CANARY_REQUESTS, (), [one.canaries for one in batchers])
        if len(batchers) > 1:
            for name, one in self.models.items():
                yield from _by_outcome(series.MODEL_REQUESTS, (name,), [one.counts])
        for each, value in self._numbers().items():
            yield each, (), value

    def _numbers(self) -> dict[Series, float]:
        batchers = self.models.values()
        batcher = next(iter(batchers))  # queue, clock and watchdog are those of all
        queue, now = batcher.queue, batcher.clock()
        in_flight, waiting = sum(one.counts.in_flight for one in batchers), queue.waiting_requests
        numbers: dict[Series, float] = {
            series.FAILED_RUNS: sum(one.failures.failed_runs for one in batchers),
            series.OUT_OF_MEMORY_RUNS: sum(one.failures.out_of_memory for one in batchers),
            series.INFLIGHT: in_flight,
            series.WAITING: waiting,
            series.RUNNING: in_flight - waiting,
            series.WAITING_TOKENS: queue.expected,
            series.OLDEST_WAIT: now - queue.oldest if queue.oldest is not None else 0.0,
            series.WAIT_ESTIMATED: queue.drain_seconds,
            series.TOKEN_BUDGET: queue.token_budget,
            series.BUSY: batcher.watchdog.busy.at(now) / self.processes,
            series.RATE: queue.tokens_per_second,
        }
        if self.device_memory is not None:
            used, total = self.device_memory() or (math.nan, math.nan)
            numbers |= {series.DEVICE_MEMORY_USED: used, series.DEVICE_MEMORY: total}
        return numbers


def _by_outcome(name: Series, labels: Labels, counts: Sequence[RequestCounts]) -> Iterable[Reading]:
    """The sums of the counts."""
    for outcome in RequestCounts.__slots__:
        yield name, (*labels, outcome), sum(getattr(one, outcome) for one in counts)
