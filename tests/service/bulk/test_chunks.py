"""Chunks keep the order of the inputs, and each limit holds unless a single input is larger."""

from hypothesis import given
from hypothesis import strategies as st

from packbert.service.library.files import ChunkLimits, Input, estimate_tokens, split_into_chunks

TEXTS = st.lists(st.text(max_size=40) | st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=60)


def length(item: Input) -> int:
    return len(item) if isinstance(item, str) else len(item[0]) + len(item[1])


@given(TEXTS, st.integers(1, 40), st.integers(1, 8), st.integers(1, 100))
def test_chunks_are_the_inputs_in_order_within_the_limits(
    items: list[Input], tokens: int, inputs: int, characters: int
) -> None:
    chunks = list(split_into_chunks(items, ChunkLimits(tokens=tokens, inputs=inputs, characters=characters)))
    assert [item for chunk in chunks for item in chunk] == items
    for chunk in chunks:
        assert 1 <= len(chunk) <= inputs
        assert len(chunk) == 1 or sum(estimate_tokens(item) for item in chunk) <= tokens
        assert len(chunk) == 1 or sum(length(item) for item in chunk) <= characters


def test_a_chinese_character_is_a_token_and_four_letters_are_one() -> None:
    assert estimate_tokens("我喜欢机器学习。") == 2 + 8
    assert estimate_tokens("abcd" * 5) == 2 + 5
    assert estimate_tokens(("abcd", "我")) == 2 + 2
