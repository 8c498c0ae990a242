"""A large batch is divided into parts that run side by side; every sequence is in exactly one."""

from hypothesis import given
from hypothesis import strategies as st

from service.runtime import LEAST, divided


@given(st.lists(st.integers(1, 512), min_size=1, max_size=200), st.integers(1, 8))
def test_every_sequence_is_in_one_part(lengths: list[int], lanes: int) -> None:
    parts = divided(lengths, lanes)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(parts)


def test_a_small_batch_stays_whole() -> None:
    assert divided([20] * 10, 2) == [list(range(10))]
    assert divided([512], 2) == [[0]]


def test_parts_are_of_a_size_and_hold_like_lengths() -> None:
    lengths = [300] + [12] * 31
    parts = divided(lengths, 2)
    assert parts[0] == [0]
    assert [sum(lengths[i] for i in part) for part in parts] == [300, 372]


def test_one_lane_never_divides() -> None:
    assert len(divided([LEAST] * 10, 1)) == 1
