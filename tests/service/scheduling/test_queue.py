"""The queue's decisions, without an event loop: admission, the next batch, expired deadlines."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from packbert.model_export.artifact.batch import Tokens
from packbert.service.errors import DeadlineTooShort, Overloaded
from packbert.service.scheduling.queue import BULK_SHARE, RECENT_BATCHES, RequestQueue
from packbert.service.scheduling.request import FIRST_MODEL, Chunk, NextBatch, QueuedModel, Request
from tests.service.fakes import make_queue, sequence
from tests.service.scheduling.serving import is_empty

FOREVER = 1e9
LATE = 2000.0


def request_of(
    tokens: int,
    arrived: float = 0.0,
    deadline: float = FOREVER,
    *,
    exclusive: bool = False,
    model: QueuedModel = FIRST_MODEL,
) -> Request:
    return Request(arrived=arrived, deadline=deadline, tokens=tokens, exclusive=exclusive, model=model)


def send(queue: RequestQueue, request: Request, *lengths: int, number: int = 0, left: int = 0) -> None:
    """The next chunk of the request."""
    queue.add(request, Chunk([sequence(number, length) for length in lengths], left=left))


def put(
    queue: RequestQueue,
    *lengths: int,
    number: int = 0,
    arrived: float = 0.0,
    deadline: float = FOREVER,
    exclusive: bool = False,
) -> Request:
    """An admitted request of one chunk."""
    request = request_of(sum(lengths), arrived, deadline, exclusive=exclusive)
    queue.admit(request)
    send(queue, request, *lengths, number=number)
    return request


def cost(batch: NextBatch) -> int:
    return sum(chunk.lengths[index] for chunk, index in batch.jobs)


def numbers(batch: NextBatch) -> list[int]:
    return [int(chunk.work[index].ids[0]) for chunk, index in batch.jobs]


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [
        ([4, 4, 4, 4, 4], [[0, 1], [2, 3], [4]]),
        ([50, 51], [[0], [1]]),  # longer than the budget
        ([6, 8, 4], [[0, 2], [1]]),  # one that does not fit is skipped and comes first in the next batch
        ([6, *[8] * 20, 4], [[0, 21], [1]]),
    ],
)
def test_a_batch_stays_within_the_token_budget(lengths: list[int], batches: list[list[int]]) -> None:
    queue = make_queue(token_budget=10)
    for number, length in enumerate(lengths):
        put(queue, length, number=number)
        assert queue.fills_a_batch == (sum(lengths[: number + 1]) >= 10)
    assert [numbers(queue.next_batch(0)) for _ in batches] == batches


def test_the_oldest_request_is_the_first_that_arrived() -> None:
    queue = make_queue(token_budget=10)
    put(queue, 8, 8, arrived=1.0)
    put(queue, 8, arrived=2.0)
    queue.next_batch(0)
    assert queue.oldest == 1.0
    queue.close("the end")
    assert queue.oldest is None


def test_bulk_requests_use_half_a_batch_after_a_small_request() -> None:
    queue = make_queue(token_budget=128, max_tokens=100_000)
    put(queue, *[10] * 2000, number=1)
    put(queue, *[10] * 2000, number=2)
    assert len(numbers(queue.next_batch(0))) == 12
    put(queue, 10, number=3)
    batch = [numbers(queue.next_batch(0)) for _ in range(RECENT_BATCHES + 1)]
    assert [number for number, one in enumerate(batch) if 3 in one] == [0]
    assert [len(one) for one in batch] == [6] * RECENT_BATCHES + [12]


def test_an_empty_batch_does_not_count_among_those_since_a_small_request() -> None:
    queue = make_queue(token_budget=128, max_tokens=100_000)
    put(queue, 10)
    assert [len(queue.next_batch(0).jobs) for _ in range(RECENT_BATCHES)] == [1] + [0] * (RECENT_BATCHES - 1)
    put(queue, *[10] * 2000)
    assert len(queue.next_batch(0).jobs) == 6


def test_the_tail_of_a_bulk_request_is_still_bulk() -> None:
    queue = make_queue(token_budget=128, max_tokens=100_000)
    put(queue, *[10] * 15)
    put(queue, *[10] * 2000)
    assert [len(numbers(queue.next_batch(0))) for _ in range(8)] == [12] * 8


def test_a_long_sequence_is_dispatched_after_the_longest_wait() -> None:
    queue = make_queue(token_budget=4, max_wait_seconds=50.0, tokens_per_second=100.0)
    put(queue, 512, number=1)
    for batch in range(1251):
        put(queue, 4, number=2, arrived=batch * 0.04)
        if 1 in numbers(queue.next_batch(batch * 0.04)):
            return
    pytest.fail("the long text was never dispatched")


def test_a_request_that_takes_an_eighth_of_the_longest_wait_never_ages() -> None:
    queue = make_queue(token_budget=8, max_tokens=10**6, max_wait_seconds=1000.0, tokens_per_second=100.0)
    put(queue, 20_000, number=1)
    put(queue, 4, number=2, arrived=LATE)
    assert numbers(queue.next_batch(LATE))[0] == 2


def test_a_full_queue_refuses_the_whole_request_and_admits_it_when_drained() -> None:
    queue = make_queue(token_budget=50, max_tokens=100)
    put(queue, 60)
    with pytest.raises(Overloaded, match=r"holds 60 of at most 90 tokens \(BERT_MAX_WAITING_TOKENS\)"):
        put(queue, 30, 30)
    assert (queue.tokens, queue.held) == (60, 60)
    queue.next_batch(0)
    put(queue, 30, 30)


def test_a_request_holds_at_most_its_window_and_any_size_is_admitted() -> None:
    queue, model = make_queue(max_tokens=1000), QueuedModel(window=300)
    queue.admit(request_of(10**6, model=model))
    assert (queue.held, queue.expected) == (300, 10**6)
    queue.admit(request_of(200, model=model))
    queue.admit(request_of(10**6, model=model))
    assert queue.held == 800
    with pytest.raises(Overloaded):
        queue.admit(request_of(10**6, model=model))


def test_bulk_requests_leave_room_in_the_queue_for_small_ones() -> None:
    queue = make_queue(token_budget=50, max_tokens=1000)
    assert (queue.capacity(50), queue.capacity(51)) == (1000, 1000 * BULK_SHARE)
    put(queue, *[30] * 30)
    with pytest.raises(Overloaded):
        put(queue, *[30] * 2)
    put(queue, 30)


def test_many_medium_requests_count_towards_the_wait_unlike_a_huge_one() -> None:
    medium, huge = (
        make_queue(token_budget=256, max_tokens=100_000, max_wait_seconds=1.8, tokens_per_second=1000) for _ in range(2)
    )
    put(huge, *[30] * 2000)
    huge.check_admission(FIRST_MODEL, 1, 0.0, patience=0.0)
    assert huge.drain_seconds == pytest.approx(60.0)
    put(huge, *[30] * 60)  # both have done 1,800 tokens by the time that it is done
    for _ in range(4):
        put(medium, *[30] * 60)
    with pytest.raises(Overloaded, match=r"the longest wait is 5\.4 s"):  # three times what it takes alone
        put(medium, *[30] * 60)


def test_a_wait_beyond_the_deadline_is_refused_with_its_own_code() -> None:
    queue = make_queue(tokens_per_second=10)
    for _ in range(4):
        put(queue, 20)
    with pytest.raises(DeadlineTooShort, match=r"wait about 8\.0 s, and its deadline is in 7\.9 s") as refusal:
        put(queue, 20, deadline=7.9)
    assert (refusal.value.status, refusal.value.code) == (429, "deadline_too_short")
    put(queue, 20, deadline=8.1)


def test_expired_requests_are_never_dispatched_neither_late_ones_nor_the_last_one() -> None:
    queue = make_queue(max_wait_seconds=1.0)
    gone, _, last = put(queue, 4, deadline=5.0), put(queue, 4, number=2, deadline=6.0), put(queue, 50, deadline=7.0)
    for now, numbers_taken, expired in ((5.0, [2], [gone]), (7.0, [], [last])):
        batch = queue.next_batch(now)
        assert (numbers(batch), batch.expired) == (numbers_taken, expired)
    assert is_empty(queue)


def test_exclusive_requests_bypass_all_limits_each_in_its_own_batch() -> None:
    queue = make_queue(token_budget=16, max_tokens=10)
    put(queue, 4, 4, number=1)
    gone, *_ = [put(queue, 4, 4, number=n, exclusive=True) for n in (2, 3, 4)]
    queue.remove(gone)
    assert [numbers(queue.next_batch(0)) for _ in range(3)] == [[3, 3], [4, 4], [1, 1]]
    assert is_empty(queue)


def test_a_request_keeps_its_place_while_it_waits_for_chunks() -> None:
    queue = make_queue(token_budget=10)
    early = request_of(10)
    queue.admit(early)
    put(queue, 9, number=2)
    put(queue, 9, number=3)
    assert numbers(queue.next_batch(0)) == [2]
    send(queue, early, 6, number=1, left=4)
    assert numbers(queue.next_batch(0)) == [1]
    send(queue, early, 4, number=1)
    assert [numbers(queue.next_batch(0)) for _ in range(2)] == [[1], [3]]
    assert is_empty(queue)


def test_what_is_expected_of_a_request_moves_its_place() -> None:
    queue = make_queue(token_budget=10, max_tokens=10_000)
    larger, smaller = request_of(1000), request_of(500)
    for request in (larger, smaller):
        queue.admit(request)
    send(queue, larger, 10, number=1, left=290)
    send(queue, smaller, 10, number=2, left=490)
    assert numbers(queue.next_batch(0)) == [1]
    send(queue, larger, 10, number=1, left=800)
    assert numbers(queue.next_batch(0)) == [2]
    send(queue, larger, 10, number=1, left=100)  # while its place has an entry
    assert numbers(queue.next_batch(0)) == [1]


def test_late_requests_waiting_for_chunks_keep_their_order() -> None:
    queue = make_queue(token_budget=16, max_wait_seconds=1.0, tokens_per_second=1000.0)
    waiting = [request_of(100), request_of(100)]
    for one in waiting:
        queue.admit(one)
    put(queue, *[4] * 30, number=1)
    put(queue, 8, 8, number=2, arrived=1.0)
    assert numbers(queue.next_batch(2.0)) == [1, 1, 2]
    for number in (4, 3):
        send(queue, waiting[number - 3], 4, number=number)
    assert numbers(queue.next_batch(2.0)) == [3, 4, 2]


def test_shrink_halves_the_batch_and_never_raises_the_budget() -> None:
    queue = make_queue(token_budget=512)
    for tokens, budget in ((2000, 512), (400, 200), (1, 1)):
        queue.shrink(tokens)
        assert queue.token_budget == budget


def retry_seconds(queue: RequestQueue, one: Request) -> float | None:
    """The seconds after which to retry; None when admitted."""
    try:
        queue.admit(one)
    except Overloaded as refusal:
        return max(1.0, refusal.retry_after or 0.0)
    return None


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=12)
FAST, SLOW = QueuedModel(window=150), QueuedModel(scale=2.5, budget=50.0, window=100)


class QueueModel(RuleBasedStateMachine):
    """Random arrivals, chunks, corrections, removals, deadlines, refusals; one of two models is put out of memory and
    released. Checked against the sequences that each request has still to send and to see dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = make_queue(token_budget=64, max_tokens=800, max_wait_seconds=3.0, tokens_per_second=100.0)
        self.now = 0.0
        self.number = 0
        self.to_send: dict[Request, list[Tokens]] = {}  # of every queued request
        self.to_run: dict[Request, list[int]] = {}  # the numbers of the sequences that it has sent, in order
        self.turns = Counter[Request]()  # batches without it, though it could be dispatched
        SLOW.in_memory, SLOW.aside = True, 0

    def sequences(self, sizes: Sequence[int]) -> list[Tokens]:
        """Each has a number of its own."""
        self.number += len(sizes)
        return [sequence(self.number - at, size) for at, size in enumerate(sizes)]

    @rule(
        sizes=lengths,
        patience=st.floats(0.1, 20),
        share=st.floats(0.5, 2.0),
        model=st.sampled_from([FAST, FAST, SLOW]),
        first=st.integers(0, 12),
    )
    def admit(self, sizes: Sequence[int], patience: float, share: float, model: QueuedModel, first: int) -> None:
        one = request_of(max(1, round(share * sum(sizes))), self.now, self.now + patience, model=model)
        if retry_seconds(self.queue, one) is None:
            self.to_send[one], self.to_run[one] = self.sequences(sizes), []
            if first:
                self.send_next(one, first, share)

    @precondition(lambda self: any(self.to_send.values()))
    @rule(data=st.data(), count=st.integers(0, 12), share=st.floats(0.5, 2.0))
    def send(self, data: st.DataObject, count: int, share: float) -> None:
        one = data.draw(st.sampled_from([one for one, work in self.to_send.items() if work]))
        self.send_next(one, count, share)

    def send_next(self, one: Request, count: int, share: float) -> None:
        work, self.to_send[one] = self.to_send[one][:count], self.to_send[one][count:]
        left = sum(map(len, self.to_send[one]))
        self.queue.add(one, Chunk(work, left=left and max(1, round(share * left))))
        self.to_run[one] += [int(tokens.ids[0]) for tokens in work]
        self.drop_ended()

    @precondition(lambda self: self.to_run)
    @rule()
    def dispatch(self) -> None:
        asked = any(one.aside for one in self.to_run)
        batch = self.queue.next_batch(self.now)
        runs = [(chunk.request, int(chunk.work[index].ids[0])) for chunk, index in batch.jobs]
        assert len({one.model for one, _ in runs}) <= 1
        ready = {one for one in self.to_run if one.queued and one.deadline > self.now and one.model.in_memory}
        for one, number in runs:
            assert one.deadline > self.now
            assert one.model.in_memory
            assert self.to_run[one].pop(0) == number  # those of a request in order, none twice
        assert cost(batch) <= min(self.queue.token_budget, runs[0][0].model.budget) if len(runs) > 1 else True
        for one in batch.expired:
            assert one.deadline <= self.now
            self.forget(one)
        assert batch.to_load == ([SLOW] if not asked and any(one.aside for one in self.to_run) else [])
        self.now += cost(batch) / self.queue.tokens_per_second
        ran = {one for one, _ in runs}
        assert runs or not any(one.queued and not one.aside and one.deadline > self.now for one in self.to_run)
        for one in self.to_run:
            self.turns[one] = 0 if one in ran or one not in ready else self.turns[one] + 1
            assert self.turns[one] <= 60, "starved"
        self.drop_ended()

    @precondition(lambda self: self.to_run and SLOW.in_memory)
    @rule()
    def put_out(self) -> None:
        SLOW.in_memory = False

    @precondition(lambda self: not SLOW.in_memory)
    @rule()
    def load(self) -> None:
        SLOW.in_memory = True
        self.queue.release(SLOW)
        assert not any(one.aside for one in self.to_run)

    @precondition(lambda self: self.to_run)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from([*self.to_run]))
        for _ in range(2):
            self.queue.remove(one)
        self.forget(one)

    @precondition(lambda self: self.to_run)
    @rule(seconds=st.floats(0, 5))
    def idle(self, seconds: float) -> None:
        self.now += seconds

    def forget(self, one: Request) -> None:
        del self.to_send[one], self.to_run[one]

    def drop_ended(self) -> None:
        for one in [one for one, work in self.to_send.items() if not work and not self.to_run[one]]:
            assert not one.unserved
            self.forget(one)

    @invariant()
    def the_sums_are_those_of_the_queued_requests(self) -> None:
        queue = self.queue
        assert {*queue.waiting} == {*self.to_run}
        queued = {one: sum(sum(chunk.lengths[chunk.dispatched :]) for chunk in one.chunks) for one in self.to_run}
        assert all(one.queued == queued[one] for one in self.to_run)
        assert queue.tokens == sum(queued[one] for one in self.to_run if not one.aside)
        assert queue.held == sum(one.held for one in self.to_run)
        for one in self.to_run:
            assert abs(one.held - min(one.unserved / one.model.scale, one.model.window)) <= 1
        assert SLOW.aside == sum(one.aside for one in self.to_run)
        assert queue.expected == sum(queued[one] + one.left for one in self.to_run)
        assert all(bool(one.left) == bool(self.to_send[one]) for one in self.to_run)
        assert self.to_run or is_empty(queue)

    @invariant()
    def a_request_that_drains_within_half_of_the_longest_wait_is_admitted(self) -> None:
        for size in (1, 65, 700):
            held = self.queue.held + min(size, FAST.window)
            if held <= self.queue.capacity(size) and self.queue.expected + size <= 0.5 * 3.0 * 100.0:
                self.queue.check_admission(FAST, size, self.now)

    def teardown(self) -> None:
        for one in self.to_run:
            self.queue.remove(one)
        assert is_empty(self.queue)
        fair = self.queue._fair
        assert [*self.queue._order, *self.queue._ageing, *fair._finishes, *fair._buckets] == []


TestQueue = QueueModel.TestCase


RETURNS = 2  # what ages while a request is away is estimated, and the estimate may be short once


class Retry(RuleBasedStateMachine):
    """A refused request is admitted after its retry time, or after the next one, if no other request arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = make_queue(token_budget=64, max_tokens=800, max_wait_seconds=2.0, tokens_per_second=100.0)
        self.now = 0.0

    @rule(sizes=lengths)
    def admit(self, sizes: Sequence[int]) -> None:
        for attempt in range(RETURNS + 1):
            one = request_of(sum(sizes), self.now)
            seconds = retry_seconds(self.queue, one)
            if seconds is None:
                send(self.queue, one, *sizes)
                return
            assert attempt < RETURNS, "refused again"
            self.work_for(seconds)

    @rule()
    def dispatch(self) -> None:
        self.now += cost(self.queue.next_batch(self.now)) / self.queue.tokens_per_second

    def work_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.queue.oldest is not None:
            self.dispatch()
        self.now = max(self.now, end)


TestRetry = Retry.TestCase
