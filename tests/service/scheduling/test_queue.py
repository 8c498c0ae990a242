"""The line's decisions, without a loop: who is admitted, who leaves next, whose time is over."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from service.errors import Overloaded, TooLarge
from service.scheduling.queue import LATELY, NextBatch, QueuedRequest, RequestQueue
from tests.service.fakes import line, sequence

FOREVER = 1e9


def caller(*lengths: int, number: int = 0, arrived: float = 0.0, deadline: float = FOREVER) -> QueuedRequest:
    return QueuedRequest([sequence(number, length) for length in lengths], arrived=arrived, deadline=deadline)


def numbers(taken: NextBatch) -> list[int]:
    return [int(job.tokens.ids[0]) for job in taken.jobs]


def admit(waiting: RequestQueue, *callers: QueuedRequest) -> None:
    for one in callers:
        waiting.admit(one)


def test_a_batch_stays_within_the_token_budget():
    waiting = line(token_budget=10)
    admit(waiting, *(caller(4, number=n) for n in range(5)))
    assert [numbers(waiting.next_batch(0)) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_a_text_longer_than_the_budget_leaves_alone():
    waiting = line(token_budget=10)
    admit(waiting, caller(50, number=1), caller(3, number=2))
    assert numbers(waiting.next_batch(0)) == [1]
    assert numbers(waiting.next_batch(0)) == [2]


def test_a_text_that_does_not_fit_lets_shorter_ones_pass_and_leaves_first_next_time():
    waiting = line(token_budget=10)
    admit(waiting, caller(6, number=1), caller(8, number=2), caller(4, number=3))
    assert numbers(waiting.next_batch(0)) == [1, 3]
    assert numbers(waiting.next_batch(0)) == [2]


def test_many_texts_that_do_not_fit_are_looked_past():
    waiting = line(token_budget=10)
    admit(waiting, caller(6, number=1), *(caller(8, number=2) for _ in range(20)), caller(4, number=3))
    assert numbers(waiting.next_batch(0)) == [1, 3]


def test_what_waits_fills_a_batch_when_it_is_as_much_as_the_budget():
    waiting = line(token_budget=10)
    admit(waiting, caller(6))
    assert not waiting.fills_a_batch
    admit(waiting, caller(4))
    assert waiting.fills_a_batch


def test_the_oldest_is_who_arrived_first_whoever_is_next_in_turn():
    waiting = line(token_budget=10)
    admit(waiting, caller(8, 8, arrived=1.0), caller(8, arrived=2.0), caller(8, arrived=3.0))
    waiting.next_batch(0)
    assert waiting.oldest == 1.0
    waiting.clear()
    assert waiting.oldest is None


def test_a_newcomer_waits_for_one_turn_of_a_bulk_request_and_not_for_all_of_it():
    waiting = line(token_budget=128, max_tokens=100_000)
    admit(waiting, caller(*[10] * 2000, number=1))
    waiting.next_batch(0)
    admit(waiting, caller(10, number=2))
    assert 2 in numbers(waiting.next_batch(0))


def test_bulk_fills_no_more_than_half_of_a_batch_while_somebody_small_has_been_here_lately():
    waiting = line(token_budget=128, max_tokens=100_000)
    admit(waiting, caller(*[10] * 2000, number=1), caller(*[10] * 2000, number=2))
    assert len(numbers(waiting.next_batch(0))) == 12
    admit(waiting, caller(10, number=3))
    taken = [numbers(waiting.next_batch(0)) for _ in range(LATELY + 1)]
    assert [number for number, one in enumerate(taken) if 3 in one] == [0]
    assert [len(one) for one in taken] == [6] * LATELY + [12]


def test_the_last_texts_of_a_bulk_request_are_nobody_small():
    waiting = line(token_budget=128, max_tokens=100_000)
    admit(waiting, caller(*[10] * 15, number=1), caller(*[10] * 2000, number=2))
    assert [len(numbers(waiting.next_batch(0))) for _ in range(8)] == [12] * 8


def test_long_and_short_texts_get_the_same_share_in_tokens():
    waiting = line(token_budget=128, max_tokens=100_000)
    admit(waiting, caller(*[256] * 100, number=1), caller(*[8] * 3000, number=2))
    sent = {1: 0, 2: 0}
    for _ in range(60):
        for job in waiting.next_batch(0).jobs:
            sent[int(job.tokens.ids[0])] += len(job.tokens)
    assert 0.8 < sent[1] / sent[2] < 1.25


def test_long_texts_leave_though_short_ones_keep_coming():
    waiting = line(token_budget=32)
    admit(waiting, caller(512, number=1))
    for n in range(2, 30):
        admit(waiting, caller(4, number=n))
        if 1 in numbers(waiting.next_batch(0)):
            return
    pytest.fail("the long text never left")


def test_a_request_larger_than_the_line_is_too_large_even_when_nobody_waits():
    with pytest.raises(TooLarge, match=r"1001 tokens; the line takes at most 900 at once \(BERT_MAX_WAITING_TOKENS\)"):
        line(max_tokens=1000).admit(caller(1001))


def test_a_full_line_refuses_the_whole_request_and_admits_it_when_drained():
    waiting = line(token_budget=50, max_tokens=100)
    admit(waiting, caller(60))
    with pytest.raises(Overloaded):
        waiting.admit(caller(30, 30))
    assert waiting.tokens == 60
    waiting.next_batch(0)
    waiting.admit(caller(30, 30))


def test_bulk_requests_leave_room_in_the_line_for_small_ones():
    waiting = line(token_budget=50, max_tokens=1000)
    admit(waiting, caller(*[30] * 30))
    with pytest.raises(Overloaded):
        waiting.admit(caller(*[30] * 2))
    waiting.admit(caller(30))


def test_a_bulk_request_in_the_line_does_not_close_it_for_others():
    waiting = line(token_budget=256, max_tokens=100_000, max_wait_seconds=1.0, tokens_per_second=1000)
    admit(waiting, caller(*[30] * 2000))
    assert waiting.wait_seconds(1) == pytest.approx(0.064)
    waiting.admit(caller(30))


def test_many_requests_of_middling_size_together_are_waited_for_and_one_huge_one_is_not():
    middling, huge = (
        line(token_budget=256, max_tokens=100_000, max_wait_seconds=10.0, tokens_per_second=1000) for _ in range(2)
    )
    admit(huge, caller(*[30] * 2000))
    huge.admit(caller(*[30] * 60))  # both have done 1,800 tokens by the time that it is done
    admit(middling, *(caller(*[30] * 60) for _ in range(6)))
    with pytest.raises(Overloaded):
        middling.admit(caller(*[30] * 60))


def test_a_request_is_refused_when_its_turn_would_come_after_its_own_deadline():
    waiting = line(tokens_per_second=10)
    admit(waiting, *(caller(20) for _ in range(4)))
    with pytest.raises(Overloaded):
        waiting.admit(caller(1, deadline=7.9))
    waiting.admit(caller(1, deadline=8.1))


def test_refused_callers_are_told_different_times_so_that_they_do_not_all_return_at_once():
    waiting = line(max_tokens=1000, max_wait_seconds=1.0, tokens_per_second=10)
    admit(waiting, *(caller(10) for _ in range(2)))
    told = set()
    for _ in range(10):
        with pytest.raises(Overloaded) as refusal:
            waiting.admit(caller(10))
        told.add(refusal.value.retry_after)
    assert len(told) == 10


def test_whoever_is_told_the_earliest_of_many_times_is_admitted_then():
    """Those of 33 tokens that wait count with the 63 of whoever comes."""
    waiting = line(token_budget=64, max_tokens=10_000, max_wait_seconds=10.0)
    admit(waiting, *(caller(33) for _ in range(30)))
    seconds = min(filter(None, (refused(waiting, caller(63)) for _ in range(50))))
    while seconds > 0:
        seconds -= sum(len(job.tokens) for job in waiting.next_batch(0).jobs) / waiting.tokens_per_second
    waiting.admit(caller(63))


def test_the_open_check_refuses_exactly_when_the_smallest_request_would_be():
    waiting = line(max_tokens=100, max_wait_seconds=1.0, tokens_per_second=50)
    waiting.check_admission(1)
    admit(waiting, caller(50), caller(1))
    with pytest.raises(Overloaded):
        waiting.check_admission(1)
    with pytest.raises(Overloaded):
        waiting.admit(caller(1))


def test_the_canary_passes_everyone_and_every_limit_and_runs_alone():
    waiting = line(max_tokens=10)
    admit(waiting, caller(2, number=1), caller(2, number=2))
    waiting.admit_exclusive(caller(8, number=3))
    assert [numbers(waiting.next_batch(0)) for _ in range(2)] == [[3], [1, 2]]
    assert waiting.tokens == 0


def test_expired_callers_are_told_apart_and_never_leave():
    waiting = line()
    admit(waiting, caller(4, number=1, deadline=5.0), caller(4, number=2, deadline=6.0))
    taken = waiting.next_batch(5.0)
    assert numbers(taken) == [2]
    assert len(taken.late) == 1
    assert waiting.tokens == 0


def test_a_caller_who_leaves_takes_what_waits_out_of_the_line():
    waiting = line(token_budget=4)
    gone = caller(4, 4, 4, number=1)
    admit(waiting, gone, caller(4, number=2))
    waiting.next_batch(0)
    assert waiting.remove(gone)
    assert not waiting.remove(gone)
    assert waiting.tokens == 4


def test_memory_that_ran_out_halves_the_batch():
    waiting = line(token_budget=512)
    waiting.shrink(400)
    assert waiting.token_budget == 200
    waiting.shrink(1)
    assert waiting.token_budget == 1


def refused(waiting: RequestQueue, one: QueuedRequest) -> float | None:
    """The seconds after which to come again; None when admitted."""
    try:
        waiting.admit(one)
    except Overloaded as refusal:
        return max(1.0, refusal.retry_after or 0.0)
    return None


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=12)


class InferenceQueue(RuleBasedStateMachine):
    """Random arrivals, departures, deadlines and refusals, checked against a plain list of who should be waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = line(token_budget=64, max_tokens=800, max_wait_seconds=3.0, tokens_per_second=100.0)
        self.there: list[QueuedRequest] = []
        self.now = 0.0
        self.turns: dict[QueuedRequest, int] = {}

    @rule(sizes=lengths, patience=st.floats(0.1, 20))
    def arrive(self, sizes: Sequence[int], patience: float) -> None:
        one = caller(*sizes, arrived=self.now, deadline=self.now + patience)
        if refused(self.waiting, one) is None:
            self.there.append(one)
            self.turns[one] = 0

    @rule()
    def run(self) -> None:
        before = list(self.there)
        taken = self.waiting.next_batch(self.now)
        for job in taken.jobs:
            assert job.caller.deadline > self.now
            assert job.index < job.caller.left
        assert all(late.deadline <= self.now for late in taken.late)
        size = sum(len(job.tokens) for job in taken.jobs)
        assert size <= self.waiting.token_budget or len(taken.jobs) == 1
        assert taken.jobs or all(one.deadline <= self.now for one in before)
        self.now += size / self.waiting.tokens_per_second
        self.there = [one for one in before if one not in taken.late and one.left < len(one.work)]
        sent = {job.caller for job in taken.jobs}
        for one in self.there:
            self.turns[one] = 0 if one in sent else self.turns[one] + 1
            assert self.turns[one] <= 60, "starved"

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.there))
        self.there.remove(one)
        assert self.waiting.remove(one)

    @rule(seconds=st.floats(0, 5))
    def idle(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_waiting_tokens_are_the_sum_of_what_waits(self) -> None:
        assert self.waiting.tokens == sum(sum(map(len, one.work[one.left :])) for one in self.there)
        assert len(self.waiting) == len(self.there)
        assert (self.waiting.wait_seconds(1) == 0) == (not self.there)


TestLine = InferenceQueue.TestCase


class Retry(RuleBasedStateMachine):
    """Whoever is refused, and comes back when told to while nobody else has come, is admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = line(token_budget=64, max_tokens=800, max_wait_seconds=2.0, tokens_per_second=100.0)

    @rule(sizes=lengths)
    def arrive(self, sizes: Sequence[int]) -> None:
        seconds = refused(self.waiting, caller(*sizes))
        if seconds is not None:
            self.work_for(seconds)
            self.waiting.admit(caller(*sizes))

    @rule()
    def run(self) -> None:
        self.waiting.next_batch(0)

    def work_for(self, seconds: float) -> None:
        while seconds > 0 and len(self.waiting):
            seconds -= sum(len(job.tokens) for job in self.waiting.next_batch(0).jobs) / self.waiting.tokens_per_second


TestRetry = Retry.TestCase
