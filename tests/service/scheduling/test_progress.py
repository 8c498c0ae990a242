"""The queue and the sharing of cores together: a batch that is dispatched is never empty while a request can run."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packbert.service.errors import Overloaded
from packbert.service.scheduling.cores import Concurrency, CoreSharing
from packbert.service.scheduling.queue import RequestQueue
from packbert.service.scheduling.request import QueuedModel, Request, SequenceJob
from tests.service.fakes import FakeRunner, FakeTime, make_queue, played
from tests.service.scheduling.serving import ask, is_empty, outcomes, serving
from tests.service.scheduling.simulation import Arrival

LENGTHS = [1, 10, 12, 63, 64, 65, 127, 128, 129, 256, 511, 512]
MODELS = QueuedModel(), QueuedModel(scale=2.5, budget=100.0)


def dispatch_until_empty(
    draw: np.random.Generator, queue: RequestQueue, cores: int, bursts: list[list[Arrival]]
) -> int:
    """Admits a burst, dispatches for some steps, and so on; ends the runs in flight in any order. The batches taken."""
    sharing = CoreSharing(Concurrency(cores, per_core=True), queue)
    in_flight, unsent = list[list[SequenceJob]](), dict[Request, Arrival]()
    now, batches, alone = 0.0, 0, False
    while bursts or unsent or queue.tokens or in_flight:
        if bursts and (not queue.tokens or draw.random() < 0.3):
            now += float(draw.exponential(0.5))
            for one in bursts.pop(0):
                request = Request(arrived=now, deadline=one.patience, tokens=one.size, model=one.model)
                with suppress(Overloaded):
                    queue.admit(request)
                    unsent[request] = one
        send_some(draw, queue, unsent)
        free = len(in_flight) < cores and not (in_flight and alone)
        selection = sharing.next(len(in_flight)) if free and queue.tokens else None
        if selection is None:
            if in_flight:
                in_flight.pop(int(draw.integers(len(in_flight))))
            else:
                assert not queue.tokens, "nothing runs and nothing is dispatched, though sequences are queued"
            continue
        batch = queue.next_batch(now, selection)
        assert batch.jobs or batch.expired, "a dispatched batch took nothing, though sequences are queued"
        for request in batch.expired:
            unsent.pop(request, None)
        batches += 1
        if batch.jobs:
            alone = not in_flight and (selection.all_cores or not queue.tokens)
            in_flight.append(batch.jobs)
    return batches


def send_some(draw: np.random.Generator, queue: RequestQueue, unsent: dict[Request, Arrival]) -> None:
    """The next chunk of about half of the requests."""
    for request, one in [*unsent.items()]:
        if draw.random() < 0.5:
            queue.add(request, one.next_chunk())
            if not request.left:
                del unsent[request]


def random_bursts(draw: np.random.Generator) -> list[list[Arrival]]:
    return [
        [
            Arrival(
                0.0,
                draw.choice(LENGTHS, int(draw.integers(1, 4))).tolist(),
                patience=float(draw.choice([0.5, 2.0, 1e9], p=[0.05, 0.15, 0.8])),
                chunk=int(draw.choice([10**9, 100])),
                model=MODELS[draw.integers(2)],
            )
            for _ in range(int(draw.integers(1, 80)))
        ]
        for _ in range(int(draw.integers(1, 4)))
    ]


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 4, 8, 16, 64]), st.sampled_from([64, 128, 256]))
def test_no_burst_leaves_the_dispatcher_without_a_batch(seed: int, cores: int, budget: int) -> None:
    draw = np.random.default_rng(seed)
    queue = make_queue(token_budget=budget, max_tokens=200_000, tokens_per_second=1000.0)
    assert dispatch_until_empty(draw, queue, cores, random_bursts(draw)) > 0
    assert is_empty(queue)


@pytest.mark.parametrize("cores", [2, 4, 16, 64])
@played
async def test_a_short_sequence_behind_many_long_ones_does_not_stop_the_event_loop(time: FakeTime, cores: int) -> None:
    run = FakeRunner(seconds_per_token=0.001, per_core=cores)
    queue = make_queue(token_budget=256, max_tokens=200_000, tokens_per_second=1000.0)
    async with serving(run, time, queue, concurrency=Concurrency(cores, per_core=True)) as batcher:
        tasks = [*(ask(batcher, n, length=256) for n in range(1, 34)), ask(batcher, 99, length=10)]
        assert await outcomes(*tasks) == [*([n] for n in range(1, 34)), [99]]
