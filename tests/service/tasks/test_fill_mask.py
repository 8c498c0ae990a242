"""/fill-mask: targets, what it and /score may cost, the passes of whole words, and the beam search over all masks."""

import asyncio
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from packbert.model_export.artifact.batch import Row
from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid, TooLarge
from packbert.service.tasks.fill_mask import MAX_ANSWER_TOKENS, MIN_CANDIDATE_TOKENS, answer_check
from packbert.service.tasks.flow import Tasks
from packbert.service.tasks.joint import Search, _neighbours, fill_together, total
from packbert.service.tasks.passes import _passes, _scores, check_cost, check_fit, cost_of, steps_of, word_score
from packbert.service.tokenization.chunks import TextChunk
from packbert.service.tokenization.encoding import NO_SPANS, EncodedText
from tests.service.tasks.fake_vectors import tasks_with_vectors

MASK = 4


def text_of(*masks: int, length: int = 6) -> EncodedText:
    """Of two segments; all but the masks is 1."""
    ids = np.full(length, 1, np.int32)
    ids[list(masks)] = MASK
    types = np.arange(length, dtype=np.int32) // (length // 2)
    return EncodedText(
        ids=ids, types=types, outputs=frozenset(), masks=masks, truncated=False, empty=False, spans=NO_SPANS
    )


@pytest.fixture(scope="module")
def tasks(bert_artifact: Path) -> Tasks:
    return tasks_with_vectors(open_artifact(bert_artifact))


def test_passes_may_cost_as_much_as_the_queue_takes_and_no_more(tasks: Tasks) -> None:
    most = tasks.max_tokens
    check_cost(tasks, 3, most, "send less")
    with pytest.raises(TooLarge, match=rf"3 passes of the model with {most + 1} tokens in all"):
        check_cost(tasks, 3, most + 1, "send less")


def test_a_text_with_masks_may_be_as_long_as_the_model_takes(tasks: Tasks) -> None:
    most = tasks.manifest.max_tokens
    check_fit(tasks, most - 2, 3, 0)
    with pytest.raises(Invalid, match=f"{most + 1} with a mask for each of a target's 3 pieces"):
        check_fit(tasks, most - 1, 3, 0)


def test_an_answer_with_too_large_candidates_is_refused(tasks: Tasks) -> None:
    for joint, masks in ((False, 2), (True, 1)):
        candidates = MAX_ANSWER_TOKENS // (masks * MIN_CANDIDATE_TOKENS)
        check, size = answer_check(tasks, candidates, joint=joint), masks * candidates * (MIN_CANDIDATE_TOKENS + 100)
        check(TextChunk([text_of(1, 4)], [0]))
        with pytest.raises(TooLarge, match=f"a response of {size} tokens"):
            check(TextChunk([text_of(2, 3, length=100)], [1]))
    chunk = TextChunk([text_of(1, length=100)], [0])
    answer_check(tasks, MAX_ANSWER_TOKENS // 100)(chunk)
    with pytest.raises(TooLarge, match="lower top_k or split the request"):
        answer_check(tasks, MAX_ANSWER_TOKENS // 100 + 1)(chunk)


def test_a_target_of_several_pieces_takes_the_place_of_its_mask() -> None:
    steps, text = steps_of([(5,), (7, 8), (7, 9)]), text_of(1, 4)
    found = list(_passes(steps, text, MASK))
    assert [one.ids.tolist() for one in found] == [
        [1, MASK, 1, 1, MASK, 1],
        [1, MASK, MASK, 1, 1, MASK, 1],
        [1, 7, MASK, 1, 1, MASK, 1],
        [1, MASK, 1, 1, MASK, MASK, 1],
        [1, MASK, 1, 1, 7, MASK, 1],
    ]
    assert [one.types.tolist() for one in found[1:]] == [[0, 0, 0, 0, 1, 1, 1]] * 2 + [[0, 0, 0, 1, 1, 1, 1]] * 2
    assert [one.masks for one in found] == [(1, 4), (1,), (2,), (4,), (5,)]
    assert [one.targets for one in found] == [(5,), (7,), (8, 9), (7,), (8, 9)]
    assert cost_of(steps, text) == (len(found), sum(map(len, found)))


def test_words_of_one_piece_alone_cost_no_further_pass() -> None:
    text = text_of(1, 4)
    assert cost_of(steps_of([(5,), (6,)]), text) == (1, 6)
    assert cost_of(steps_of([(5, 6)]), text) == (4, 4 * 7)


def test_the_score_of_a_word_is_the_geometric_mean_over_its_pieces() -> None:
    targets = [(5,), (7, 8)]
    sums = np.zeros((1, 1), np.float32)
    rows: list[Row] = [
        {"target_logits": np.array([log], np.float32), "log_sum_exp": sums} for log in (-3.0, -1.0, -2.0)
    ]
    scores = asyncio.run(_scores(targets, steps_of(targets), 1, rows))
    assert scores == {(0, (5,)): -3.0, (0, (7, 8)): -3.0}
    assert word_score((7, 8), -3.0) == math.exp(-1.5)
    assert word_score((5,), -3.0) == math.exp(-3.0)


def fill(server: httpx.Client, **body: Any) -> Any:
    return server.post("/fill-mask", json=body).json()


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("北龍", "the target '北龍' is not in the vocabulary (北, [UNK])"),
        ("龍" * 30, f"... is not in the vocabulary ({', '.join(['[UNK]'] * 10)}, ...)"),
    ],
)
def test_a_target_with_an_unknown_piece_is_refused_unless_its_first_counts(
    server: httpx.Client, target: str, fault: str
) -> None:
    refused = fill(server, inputs="the [MASK] is big", parameters={"targets": ["dog", target], "first_piece": False})
    assert refused["code"] == "targets"
    assert fault.removeprefix("...") in refused["error"]
    assert '"first_piece": true' in refused["error"]
    found = fill(server, inputs="the [MASK] is big", targets=["dog", target], first_piece=True)
    assert {one["target"] for one in found} == {"dog", target}.difference([" "])


def test_two_targets_with_one_first_piece_are_one_candidate(server: httpx.Client) -> None:
    (one,) = fill(server, inputs="the [MASK] is big", targets=["unaffable", "un"], first_piece=True)
    assert (one["token_str"], one["target"]) == ("un", "unaffable")


def test_padding_as_a_candidate_is_left_out_of_the_sequence(server: httpx.Client) -> None:
    vocabulary = server.get("/info").json()["sizes"]["vocabulary"]
    first, _ = fill(server, inputs="the [MASK] is [MASK]", top_k=vocabulary)
    (padding,) = (one for one in first if one["token_str"] == "[PAD]")
    assert padding["sequence"] == "[CLS] the is [MASK] [SEP]"


A, B = 5, 6


def row(*masks: dict[int, float]) -> Row:
    """Of each mask the log-probabilities of its candidates, best first."""
    return {
        "top_ids": np.array([list(one) for one in masks]),
        "top_logits": np.array([list(one.values()) for one in masks], np.float32),
        "log_sum_exp": np.zeros((len(masks), 1), np.float32),
    }


def test_of_two_orders_the_likelier_one_is_kept() -> None:
    search = Search(text_of(2, 4, length=8), beam=2)
    search.states = [((0, A, -1.0),), ((1, B, -1.25),)]
    search.advance([row({B: -0.5, A: -8.0}), row({A: -0.75, B: -8.0})])
    best = search.states[0]
    assert (best, total(best)) == (((0, A, -1.0), (1, B, -0.5)), -1.5)
    assert len(search.states) == 2
    assert search.done


def test_the_mask_with_the_most_certain_candidate_is_filled_first() -> None:
    search = Search(text_of(2, 4, length=8), beam=2)
    search.advance([row({A: -2.0, B: -3.0}, {B: -0.5, A: -4.0})])
    assert search.states == [((1, B, -0.5),), ((1, A, -4.0),)]
    first, second = search.passes()
    assert (first.masks, first.ids[4], second.ids[4]) == ((2,), B, A)


def test_rounding_makes_no_probability_larger_than_1() -> None:
    search = Search(text_of(1), beam=1)
    search.advance([row({A: 1e-6})])
    assert search.states == [((0, A, 0.0),)]


@pytest.mark.parametrize(
    ("positions", "runs"),
    [((2, 3, 5), [[0, 1], [2]]), ((1,), [[0]]), ((1, 3), [[0], [1]]), ((4, 5, 6), [[0, 1, 2]])],
)
def test_masks_without_a_token_between_them_are_one_run(positions: tuple[int, ...], runs: list[list[int]]) -> None:
    assert _neighbours(positions) == runs


def test_a_search_costs_a_pass_and_the_beam_for_each_further_mask(bert_artifact: Path) -> None:
    tasks = tasks_with_vectors(open_artifact(bert_artifact), max_waiting_tokens=79)
    assert tasks.max_tokens == (1 + 4 + 4) * 8 - 1
    search = fill_together(tasks, [text_of(1, 3, 5, length=8)], beam=4, top_k=1)
    with pytest.raises(TooLarge, match="9 passes of the model with 72 tokens"):
        asyncio.run(search)
