"""The numbers at the edge of the queue's rules."""

from packbert.service.scheduling.queue import BULK_SHARE, RequestQueue
from packbert.service.scheduling.request import Request
from tests.service.fakes import make_queue, sequence

LATE = 2000.0


def missing(queue: RequestQueue) -> Request:
    """An admitted request whose only sequence is not there yet."""
    request = Request([], arrived=0.0, deadline=1e9, missing=1, reserved=4)
    queue.admit(request)
    return request


def test_a_request_as_large_as_a_batch_may_use_the_whole_queue() -> None:
    queue = make_queue(token_budget=10, max_tokens=1000)
    assert queue.capacity(10) == 1000
    assert queue.capacity(11) == 1000 * BULK_SHARE


def test_a_batch_that_did_not_fit_the_memory_never_raises_the_budget() -> None:
    queue = make_queue(token_budget=10)
    queue.shrink(50)  # one sequence that is longer than the budget
    assert queue.token_budget == 10


def test_late_requests_keep_their_order_while_their_sequences_are_missing() -> None:
    queue = make_queue(token_budget=8, max_wait_seconds=1000.0)
    first, second = missing(queue), missing(queue)
    assert not queue.next_batch(LATE).jobs
    for request in (second, first):
        queue.extend(request, [sequence(0, 4)], 0)
    (taken, _), *_ = queue.next_batch(LATE).jobs
    assert taken is first


def test_a_request_that_alone_takes_more_than_an_eighth_of_the_longest_wait_is_never_served_first_for_its_age() -> None:
    queue = make_queue(token_budget=8, max_tokens=10**6, max_wait_seconds=1000.0, tokens_per_second=100.0)
    large = Request([sequence(0, 20_000)], arrived=0.0, deadline=1e9)
    small = Request([sequence(1, 4)], arrived=LATE, deadline=1e9)
    queue.admit(large)
    queue.admit(small)
    (taken, _), *_ = queue.next_batch(LATE).jobs
    assert taken is small
