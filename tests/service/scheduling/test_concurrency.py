"""How many of the queued tokens go into the next batch."""

import pytest

from packbert.service.scheduling.cores import MIN_TOKENS_PER_CORE, Concurrency


@pytest.mark.parametrize(("in_flight", "share"), [(0, 250), (1, 334), (2, 500), (3, 1000)])
def test_every_free_core_gets_its_share_and_no_tokens_are_left_over(in_flight: int, share: int) -> None:
    assert Concurrency(4, per_core=True).tokens_for_one(1000, in_flight=in_flight, budget=1000) == share


@pytest.mark.parametrize(("queued", "tokens"), [(256, 128), (257, 65), (372, 93), (512, 128), (10_000, 125)])
def test_the_batches_of_a_core_are_of_one_size(queued: int, tokens: int) -> None:
    assert Concurrency(2, per_core=True).tokens_for_one(queued, in_flight=0, budget=128) == tokens


def test_a_core_gets_at_least_the_minimum() -> None:
    sharing = Concurrency(4, per_core=True)
    assert sharing.tokens_for_one(100, in_flight=0, budget=128) == MIN_TOKENS_PER_CORE == 64
