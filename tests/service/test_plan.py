"""How much of what waits goes into the next batch."""

import pytest

from service.plan import LEAST_IN_A_LANE, ONE_BY_ONE, Plan


def test_without_lanes_a_batch_takes_what_it_may():
    assert ONE_BY_ONE.share(1000, under_way=0) is None
    assert Plan(2).share(1000, under_way=1) is None


@pytest.mark.parametrize(("under_way", "share"), [(0, 250), (1, 334), (2, 500), (3, 1000)])
def test_every_free_lane_gets_its_share_and_nothing_is_left_over(under_way: int, share: int):
    assert Plan(4, lanes=True).share(1000, under_way=under_way) == share


def test_a_lane_gets_no_less_than_one_core_is_good_for():
    assert Plan(4, lanes=True).share(100, under_way=0) == LEAST_IN_A_LANE == 64
