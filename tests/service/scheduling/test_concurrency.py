"""How much of what waits goes into the next batch."""

import pytest

from service.scheduling.concurrency import MIN_TOKENS_PER_CORE, SERIAL, Concurrency


def test_without_lanes_a_batch_takes_what_it_may():
    assert SERIAL.share(1000, in_flight=0) is None
    assert Concurrency(2).share(1000, in_flight=1) is None


@pytest.mark.parametrize(("in_flight", "share"), [(0, 250), (1, 334), (2, 500), (3, 1000)])
def test_every_free_lane_gets_its_share_and_nothing_is_left_over(in_flight: int, share: int):
    assert Concurrency(4, per_core=True).share(1000, in_flight=in_flight) == share


def test_a_lane_gets_no_less_than_one_core_is_good_for():
    assert Concurrency(4, per_core=True).share(100, in_flight=0) == MIN_TOKENS_PER_CORE == 64
