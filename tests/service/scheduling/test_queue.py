"""The queue's decisions, without an event loop: admission, the next batch, expired deadlines."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from packbert.service.errors import DeadlineTooShort, Overloaded, TooLarge
from packbert.service.scheduling.queue import RECENT_BATCHES, RequestQueue
from packbert.service.scheduling.request import NextBatch, Request
from tests.service.fakes import make_queue, sequence

FOREVER = 1e9


def request_of(
    *lengths: int, number: int = 0, arrived: float = 0.0, deadline: float = FOREVER, exclusive: bool = False
) -> Request:
    work = [sequence(number, length) for length in lengths]
    return Request(work, arrived=arrived, deadline=deadline, exclusive=exclusive)


def dispatched_tokens(batch: NextBatch) -> int:
    return sum(request.lengths[index] for request, index in batch.jobs)


def numbers(batch: NextBatch) -> list[int]:
    return [int(one.work[index].ids[0]) for one, index in batch.jobs]


def admit(queue: RequestQueue, *requests: Request) -> None:
    for one in requests:
        queue.admit(one)


def test_a_batch_stays_within_the_token_budget() -> None:
    queue = make_queue(token_budget=10)
    admit(queue, *(request_of(4, number=n) for n in range(5)))
    assert [numbers(queue.next_batch(0)) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_a_sequence_longer_than_the_budget_is_dispatched_alone() -> None:
    queue = make_queue(token_budget=10)
    admit(queue, request_of(50, number=1), request_of(51, number=2))
    assert numbers(queue.next_batch(0)) == [1]
    assert numbers(queue.next_batch(0)) == [2]


def test_a_sequence_that_does_not_fit_is_skipped_and_comes_first_in_the_next_batch() -> None:
    queue = make_queue(token_budget=10)
    admit(queue, request_of(6, number=1), request_of(8, number=2), request_of(4, number=3))
    assert numbers(queue.next_batch(0)) == [1, 3]
    assert numbers(queue.next_batch(0)) == [2]


def test_many_sequences_that_do_not_fit_are_skipped() -> None:
    queue = make_queue(token_budget=10)
    admit(queue, request_of(6, number=1), *(request_of(8, number=2) for _ in range(20)), request_of(4, number=3))
    assert numbers(queue.next_batch(0)) == [1, 3]


def test_the_queue_fills_a_batch_when_it_holds_as_many_tokens_as_the_budget() -> None:
    queue = make_queue(token_budget=10)
    admit(queue, request_of(6))
    assert not queue.fills_a_batch
    admit(queue, request_of(4))
    assert queue.fills_a_batch


def test_the_oldest_request_is_the_first_that_arrived_whichever_is_next_in_turn() -> None:
    queue = make_queue(token_budget=10)
    admit(queue, request_of(8, 8, arrived=1.0), request_of(8, arrived=2.0), request_of(8, arrived=3.0))
    queue.next_batch(0)
    assert queue.oldest == 1.0
    queue.close("the end")
    assert queue.oldest is None


def test_a_new_request_waits_for_one_turn_of_a_bulk_request_and_not_for_all_of_it() -> None:
    queue = make_queue(token_budget=128, max_tokens=100_000)
    admit(queue, request_of(*[10] * 2000, number=1))
    queue.next_batch(0)
    admit(queue, request_of(10, number=2))
    assert 2 in numbers(queue.next_batch(0))


def test_bulk_requests_use_half_of_each_batch_for_some_batches_after_a_small_request() -> None:
    queue = make_queue(token_budget=128, max_tokens=100_000)
    admit(queue, request_of(*[10] * 2000, number=1), request_of(*[10] * 2000, number=2))
    assert len(numbers(queue.next_batch(0))) == 12
    admit(queue, request_of(10, number=3))
    batch = [numbers(queue.next_batch(0)) for _ in range(RECENT_BATCHES + 1)]
    assert [number for number, one in enumerate(batch) if 3 in one] == [0]
    assert [len(one) for one in batch] == [6] * RECENT_BATCHES + [12]


def test_an_empty_batch_does_not_count_among_those_since_a_small_request() -> None:
    queue = make_queue(token_budget=128, max_tokens=100_000)
    admit(queue, request_of(10, number=1))
    assert [len(queue.next_batch(0).jobs) for _ in range(RECENT_BATCHES)] == [1] + [0] * (RECENT_BATCHES - 1)
    admit(queue, request_of(*[10] * 2000, number=2))
    assert len(queue.next_batch(0).jobs) == 6


def test_the_tail_of_a_bulk_request_is_still_bulk() -> None:
    queue = make_queue(token_budget=128, max_tokens=100_000)
    admit(queue, request_of(*[10] * 15, number=1), request_of(*[10] * 2000, number=2))
    assert [len(numbers(queue.next_batch(0))) for _ in range(8)] == [12] * 8


def test_requests_of_the_same_size_are_served_as_they_came_however_long_their_sequences() -> None:
    queue = make_queue(token_budget=128, max_tokens=100_000)
    admit(queue, request_of(*[256] * 10, number=1), request_of(*[8] * 320, number=2), request_of(2560, number=3))
    order = [number for _ in range(32) for number in numbers(queue.next_batch(0))]
    assert order == sorted(order)
    assert set(order) == {1, 2, 3}


def test_a_long_sequence_is_dispatched_after_the_longest_wait_though_short_ones_keep_arriving() -> None:
    queue = make_queue(token_budget=4, max_wait_seconds=50.0, tokens_per_second=100.0)
    admit(queue, request_of(512, number=1))
    for batch in range(1260):
        admit(queue, request_of(4, number=2, arrived=batch * 0.04))
        if 1 in numbers(queue.next_batch(batch * 0.04)):
            assert batch <= 1250
            return
    pytest.fail("the long text was never dispatched")


def test_a_request_larger_than_the_queue_is_too_large_even_when_the_queue_is_empty() -> None:
    with pytest.raises(TooLarge, match=r"1001 tokens; the queue takes at most 900 at once \(BERT_MAX_WAITING_TOKENS\)"):
        make_queue(max_tokens=1000).admit(request_of(1001))


def test_a_full_queue_rejects_the_whole_request_and_admits_it_when_drained() -> None:
    queue = make_queue(token_budget=50, max_tokens=100)
    admit(queue, request_of(60))
    with pytest.raises(Overloaded):
        queue.admit(request_of(30, 30))
    assert queue.tokens == 60
    queue.next_batch(0)
    queue.admit(request_of(30, 30))


def test_bulk_requests_leave_room_in_the_queue_for_small_ones() -> None:
    queue = make_queue(token_budget=50, max_tokens=1000)
    admit(queue, request_of(*[30] * 30))
    with pytest.raises(Overloaded):
        queue.admit(request_of(*[30] * 2))
    queue.admit(request_of(30))


def test_a_queued_bulk_request_does_not_block_admission() -> None:
    queue = make_queue(token_budget=256, max_tokens=100_000, max_wait_seconds=1.0, tokens_per_second=1000)
    admit(queue, request_of(*[30] * 2000))
    queue.check_admission(1, 0.0, patience=0.0)
    assert queue.drain_seconds == pytest.approx(60.0)
    queue.admit(request_of(30))


def test_many_medium_requests_count_towards_the_wait_and_one_huge_one_does_not() -> None:
    medium, huge = (
        make_queue(token_budget=256, max_tokens=100_000, max_wait_seconds=10.0, tokens_per_second=1000)
        for _ in range(2)
    )
    admit(huge, request_of(*[30] * 2000))
    huge.admit(request_of(*[30] * 60))  # both have done 1,800 tokens by the time that it is done
    admit(medium, *(request_of(*[30] * 60) for _ in range(6)))
    with pytest.raises(Overloaded):
        medium.admit(request_of(*[30] * 60))


def test_a_request_that_would_wait_beyond_its_own_deadline_is_refused_with_a_code_of_its_own() -> None:
    queue = make_queue(tokens_per_second=10)
    admit(queue, *(request_of(20) for _ in range(4)))
    with pytest.raises(DeadlineTooShort, match=r"wait about 8\.0 s, and its deadline is in 7\.9 s") as refusal:
        queue.admit(request_of(20, deadline=7.9))
    assert (refusal.value.status, refusal.value.code) == (429, "deadline_too_short")
    queue.admit(request_of(20, deadline=8.1))


def test_rejected_requests_get_different_retry_times() -> None:
    queue = make_queue(max_tokens=1000, max_wait_seconds=1.0, tokens_per_second=10)
    admit(queue, *(request_of(10) for _ in range(2)))
    seconds = set()
    for _ in range(10):
        with pytest.raises(Overloaded) as refusal:
            queue.admit(request_of(10))
        seconds.add(refusal.value.retry_after)
    assert len(seconds) >= 3  # whole seconds


def test_a_request_is_admitted_after_the_earliest_of_many_retry_times() -> None:
    """The queued requests of 33 tokens count with the 63 of the new one."""
    queue = make_queue(token_budget=64, max_tokens=10_000, max_wait_seconds=10.0)
    admit(queue, *(request_of(33) for _ in range(30)))
    seconds = min(filter(None, (retry_seconds(queue, request_of(63)) for _ in range(50))))
    while seconds > 0:
        seconds -= dispatched_tokens(queue.next_batch(0)) / queue.tokens_per_second
    queue.admit(request_of(63))


def test_check_admission_rejects_exactly_when_the_smallest_request_is_rejected() -> None:
    queue = make_queue(max_tokens=100, max_wait_seconds=1.0, tokens_per_second=50)
    queue.check_admission(1, 0.0)
    admit(queue, *(request_of(8) for _ in range(7)))
    with pytest.raises(Overloaded):
        queue.check_admission(1, 0.0)
    with pytest.raises(Overloaded):
        queue.admit(request_of(1))


def test_an_exclusive_request_bypasses_the_queue_and_all_limits_in_its_own_batch() -> None:
    queue = make_queue(max_tokens=10)
    admit(queue, request_of(2, number=1), request_of(2, number=2))
    queue.admit(request_of(8, number=3, exclusive=True))
    assert [numbers(queue.next_batch(0)) for _ in range(2)] == [[3], [1, 2]]
    assert queue.tokens == 0


def test_expired_requests_are_returned_separately_and_never_dispatched() -> None:
    queue = make_queue()
    admit(queue, request_of(4, number=1, deadline=5.0), request_of(4, number=2, deadline=6.0))
    batch = queue.next_batch(5.0)
    assert numbers(batch) == [2]
    assert len(batch.expired) == 1
    assert queue.tokens == 0


def test_a_request_in_parts_keeps_its_place_while_it_waits_for_sequences() -> None:
    queue = make_queue(token_budget=10)
    early = Request([], arrived=0.0, deadline=FOREVER, missing=2, reserved=8)
    admit(queue, early, request_of(9, number=2), request_of(9, number=3))
    assert numbers(queue.next_batch(0)) == [2]
    queue.extend(early, [sequence(1, 8)], 4)
    assert numbers(queue.next_batch(0)) == [1]
    queue.extend(early, [sequence(1, 4)], 0)
    assert [numbers(queue.next_batch(0)) for _ in range(2)] == [[1], [3]]
    assert (queue.oldest, queue.expected) == (None, 0)


def test_a_late_request_that_waits_for_sequences_holds_up_no_other_late_one() -> None:
    queue = make_queue(token_budget=16, max_wait_seconds=1.0, tokens_per_second=1000.0)
    waiting = Request([], arrived=0.0, deadline=FOREVER, missing=1, reserved=100)
    admit(queue, waiting, request_of(*[4] * 30, number=1), request_of(8, 8, number=2, arrived=1.0))
    assert numbers(queue.next_batch(2.0)) == [1, 1, 2]
    queue.extend(waiting, [sequence(0, 8)], 0)
    assert numbers(queue.next_batch(2.0)) == [0, 2]


def test_exclusive_requests_are_first_one_after_another() -> None:
    queue = make_queue(token_budget=16)
    admit(queue, request_of(4, 4, number=1))
    gone, *others = (request_of(4, number=n, exclusive=True) for n in (2, 3, 4))
    for one in (gone, *others):
        queue.admit(one)
    queue.remove(gone)
    assert [numbers(queue.next_batch(0)) for _ in range(3)] == [[3], [4], [1, 1]]


def test_removing_a_request_drops_its_queued_sequences() -> None:
    queue = make_queue(token_budget=4)
    gone = request_of(4, 4, 4, number=1)
    admit(queue, gone, request_of(4, 4, 4, 4, number=2))
    assert numbers(queue.next_batch(0)) == [1]
    queue.remove(gone)
    queue.remove(gone)
    assert queue.tokens == 16


def test_shrink_halves_the_batch_that_did_not_fit_the_memory() -> None:
    queue = make_queue(token_budget=512)
    queue.shrink(400)
    assert queue.token_budget == 200
    queue.shrink(1)
    assert queue.token_budget == 1


def retry_seconds(queue: RequestQueue, one: Request) -> float | None:
    """The seconds after which to retry; None when admitted."""
    try:
        queue.admit(one)
    except Overloaded as refusal:
        return max(1.0, refusal.retry_after or 0.0)
    return None


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=12)


class QueueModel(RuleBasedStateMachine):
    """Random arrivals, removals, deadlines and rejections, checked against a list of what should be queued."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = make_queue(token_budget=64, max_tokens=800, max_wait_seconds=3.0, tokens_per_second=100.0)
        self.queued: list[Request] = []
        self.now = 0.0
        self.turns: dict[Request, int] = {}
        self.missing: dict[Request, list[int]] = {}  # the lengths that requests in parts are still to bring

    @rule(sizes=lengths, patience=st.floats(0.1, 20))
    def admit(self, sizes: Sequence[int], patience: float) -> None:
        one = request_of(*sizes, arrived=self.now, deadline=self.now + patience)
        if retry_seconds(self.queue, one) is None:
            self.queued.append(one)
            self.turns[one] = 0

    @rule(sizes=lengths, patience=st.floats(0.1, 20), expected=st.integers(1, 800))
    def admit_in_parts(self, sizes: list[int], patience: float, expected: int) -> None:
        deadline = self.now + patience
        one = Request([], arrived=self.now, deadline=deadline, missing=len(sizes), reserved=expected)
        if expected <= self.queue.capacity(expected) and retry_seconds(self.queue, one) is None:
            self.queued.append(one)
            self.turns[one] = 0
            self.missing[one] = sizes

    @precondition(lambda self: any(one.missing for one in self.queued))
    @rule(data=st.data(), count=st.integers(1, 12), expected=st.integers(1, 800))
    def bring_part(self, data: st.DataObject, count: int, expected: int) -> None:
        one = data.draw(st.sampled_from([one for one in self.queued if one.missing]))
        part, self.missing[one] = self.missing[one][:count], self.missing[one][count:]
        expected = expected if self.missing[one] else 0
        self.queue.extend(one, [sequence(0, length) for length in part], expected)
        assert (one.missing > 0) == bool(self.missing[one])
        assert one.reserved == expected

    @rule()
    def dispatch(self) -> None:
        before = list(self.queued)
        batch = self.queue.next_batch(self.now)
        for request, index in batch.jobs:
            assert request.deadline > self.now
            assert index < request.dispatched
        assert all(request.deadline <= self.now for request in batch.expired)
        size = dispatched_tokens(batch)
        assert size <= self.queue.token_budget or len(batch.jobs) == 1
        assert batch.jobs or all(one.deadline <= self.now or not one.queued_tokens for one in before)
        self.now += size / self.queue.tokens_per_second
        self.queued = [one for one in before if one not in batch.expired and not one.dispatched_all]
        sent = {request for request, _ in batch.jobs}
        for one in self.queued:
            self.turns[one] = 0 if one in sent or not one.queued_tokens else self.turns[one] + 1
            assert self.turns[one] <= 60, "starved"

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.queued))
        self.queued.remove(one)
        self.queue.remove(one)

    @rule(seconds=st.floats(0, 5))
    def idle(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_waiting_tokens_are_the_sum_of_what_waits(self) -> None:
        assert self.queue.tokens == sum(sum(map(len, one.work[one.dispatched :])) for one in self.queued)
        assert len([*self.queue.waiting]) == len(self.queued)
        assert self.queue.reserved == sum(one.reserved for one in self.queued)
        assert all(one.reserved > 0 for one in self.queued if one.missing)
        assert self.queue.drain_seconds == self.queue.expected / self.queue.tokens_per_second

    @invariant()
    def a_request_that_drains_within_half_of_the_longest_wait_is_admitted(self) -> None:
        for size in (1, 65, 700):
            if self.queue.expected + size <= min(0.5 * 3.0 * 100.0, self.queue.capacity(size)):
                self.queue.check_admission(size, self.now)


TestQueue = QueueModel.TestCase


RETURNS = 2  # what ages while a request is away is estimated, and the estimate may be short once


class Retry(RuleBasedStateMachine):
    """A rejected request is admitted after its retry time, or after the next one, if no other request arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = make_queue(token_budget=64, max_tokens=800, max_wait_seconds=2.0, tokens_per_second=100.0)
        self.now = 0.0

    @rule(sizes=lengths)
    def admit(self, sizes: Sequence[int]) -> None:
        for _ in range(RETURNS):
            seconds = retry_seconds(self.queue, request_of(*sizes, arrived=self.now))
            if seconds is None:  # admitted
                return
            self.work_for(seconds)
        self.queue.admit(request_of(*sizes, arrived=self.now))

    @rule()
    def dispatch(self) -> None:
        self.now += dispatched_tokens(self.queue.next_batch(self.now)) / self.queue.tokens_per_second

    def work_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.queue.oldest is not None:
            self.dispatch()
        self.now = max(self.now, end)


TestRetry = Retry.TestCase
