"""The beam search that fills all masks of a text, on rows made by hand."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packbert.model_export.artifact.batch import Row
from packbert.service.artifact import open_artifact
from packbert.service.errors import TooLarge
from packbert.service.tasks.joint import Filled, Search, _most_certain, _neighbours, fill_together
from packbert.service.tokenization.encoding import NO_SPANS, EncodedText
from tests.service.tasks.fake_vectors import tasks_with_vectors

A, B = 5, 6


def text_of(*masks: int) -> EncodedText:
    ids = np.full(8, 1, np.int32)
    return EncodedText(
        ids=ids, types=ids * 0, outputs=frozenset(), masks=masks, truncated=False, empty=False, spans=NO_SPANS
    )


def row(*masks: dict[int, float]) -> Row:
    """Of each mask the log-probabilities of its candidates, best first."""
    return {
        "top_ids": np.array([list(one) for one in masks]),
        "top_logits": np.array([list(one.values()) for one in masks], np.float32),
        "log_sum_exp": np.zeros((len(masks), 1), np.float32),
    }


def test_of_two_orders_that_fill_the_same_pieces_the_likelier_one_is_kept() -> None:
    search = Search(text_of(2, 4), beam=2)
    search.states = [
        Filled(pieces=(A, -1), logs=(-1.0, 0.0), log_probability=-1.0, order=(0,)),
        Filled(pieces=(-1, B), logs=(0.0, -1.25), log_probability=-1.25, order=(1,)),
    ]
    search.advance([row({B: -0.5, A: -8.0}), row({A: -0.75, B: -8.0})])
    best = search.states[0]
    assert (best.pieces, best.log_probability, best.order) == ((A, B), -1.5, (0, 1))
    assert len(search.states) == 2
    assert search.done


def test_the_mask_with_the_most_certain_candidate_is_filled_first() -> None:
    search = Search(text_of(2, 4), beam=2)
    search.advance([row({A: -2.0, B: -3.0}, {B: -0.5, A: -4.0})])
    assert [state.pieces for state in search.states] == [(-1, B), (-1, A)]
    assert [state.order for state in search.states] == [(1,), (1,)]
    first, second = search.passes()
    assert (first.masks, first.ids[4], second.ids[4]) == ((2,), B, A)


def test_rounding_makes_no_probability_larger_than_1() -> None:
    state = Filled(pieces=(-1,), logs=(0.0,))
    assert _most_certain(state, row({A: 1e-6}), beam=1) == (0, [A], [0.0])


@pytest.mark.parametrize(
    ("positions", "runs"),
    [((2, 3, 5), [[0, 1], [2]]), ((1,), [[0]]), ((1, 3), [[0], [1]]), ((4, 5, 6), [[0, 1, 2]])],
)
def test_masks_without_a_token_between_them_are_one_run(positions: tuple[int, ...], runs: list[list[int]]) -> None:
    assert _neighbours(positions) == runs


def test_a_search_costs_a_pass_for_the_first_mask_and_the_beam_for_each_other(bert_artifact: Path) -> None:
    tasks = tasks_with_vectors(open_artifact(bert_artifact))
    tasks = replace(tasks, limits=replace(tasks.limits, max_tokens=(1 + 4 + 4) * 8 - 1))
    search = fill_together(tasks, [text_of(1, 3, 5)], beam=4, top_k=1)
    with pytest.raises(TooLarge, match="9 passes of the model with 72 tokens"):
        asyncio.run(search)
