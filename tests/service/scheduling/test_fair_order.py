"""The arithmetic of the queue's policy, without a queue."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from packbert.service.scheduling.order import FairOrder
from packbert.service.scheduling.wait import RecentLoad

MINIMUM = 8


@dataclass(slots=True, eq=False)
class Joined:
    number: int
    size: int
    finish: float
    unserved: int  # tokens
    moved: bool = False

    @property
    def cost(self) -> int:
        return self.unserved + max(0, MINIMUM - self.size)


class FairOrderModel(RuleBasedStateMachine):
    """Requests join, are served in their order or out of it, and leave; equal sharing serves the same cost."""

    def __init__(self) -> None:
        super().__init__()
        self.fair = FairOrder(minimum_cost=MINIMUM)
        self.joined: list[Joined] = []
        self.number = 0

    @rule(size=st.integers(1, 100))
    def join(self, size: int) -> None:
        self.number += 1
        finish = self.fair.join(self.number, size)
        assert all(one.finish <= finish for one in self.joined if one.size <= size and not one.moved)
        self.joined.append(Joined(self.number, size, finish, size))

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.joined))
        tokens = data.draw(st.integers(1, one.unserved))
        one.unserved -= tokens
        if not one.unserved:
            self.joined.remove(one)
        self.fair.serve(one.finish, tokens, one.size, last=not one.unserved)

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.joined))
        self.joined.remove(one)
        self.fair.leave(one.number, one.finish, one.unserved, one.size)

    @precondition(lambda self: self.joined)
    @rule(data=st.data(), unserved=st.integers(1, 200))
    def expect(self, data: st.DataObject, unserved: int) -> None:
        one = data.draw(st.sampled_from(self.joined))
        now, more = self.fair.virtual_time, unserved - one.unserved
        shared = self.fair._finishes.get(one.number, now)
        one.finish = self.fair.expect(one.number, one.finish, one.size, one.unserved, more)
        one.unserved, one.moved = unserved, True
        assert one.finish == (pytest.approx(shared + more) if shared + more > now else self.fair.virtual_time)

    @invariant()
    def equal_sharing_has_as_much_left(self) -> None:
        shared = sum(max(0.0, finish - self.fair.virtual_time) for finish in self.fair._finishes.values())
        assert shared == pytest.approx(sum(one.cost for one in self.joined), abs=1e-6)

    @invariant()
    def the_estimate_counts_all_that_come_first_and_few_others(self) -> None:
        for size in (1, 30, 1000):
            finish = self.fair.virtual_time + max(size, MINIMUM)
            least = sum(one.unserved for one in self.joined if one.finish <= finish)
            most = sum(one.unserved for one in self.joined if one.finish <= finish + 1.0)
            assert least <= self.fair.ahead(size) <= most


TestFairOrder = FairOrderModel.TestCase


def test_the_recent_load_is_that_of_smaller_requests_and_fades() -> None:
    recent = RecentLoad()
    for tenth in range(1000):
        recent.add(100, 500, tenth / 10)
        recent.add(5000, 5000, tenth / 10)
    np.testing.assert_allclose(recent.smaller(5000, 100.0), [(100, 5000)], rtol=0.05)
    assert recent.smaller(99, 100.0) == []
    assert recent.smaller(5000, 130.0)[0][1] < 1
    recent.add(100, 3000, 1000.0)  # long after: the old weights are decayed
    np.testing.assert_allclose(recent.smaller(5000, 1000.0), [(100, 1000)])
