"""/fill-mask: targets, what it and /score may cost, the passes of whole words, and the beam search over all masks."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid, TooLarge
from packbert.service.tasks.fill_mask import MAX_ANSWER_TOKENS, MIN_CANDIDATE_TOKENS, answer_check
from packbert.service.tasks.flow import Tasks
from packbert.service.tasks.joint import Search, fill_together
from packbert.service.tasks.passes import check_cost, check_fit
from packbert.service.tokenization.chunks import TextChunk
from packbert.service.tokenization.encoding import NO_SPANS, EncodedText
from tests.service.in_process import InProcessClient, ask
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


def test_two_targets_with_one_first_piece_are_one_candidate(encoder: InProcessClient) -> None:
    targets = ["unaffable", "un"]
    (one,) = ask(encoder, "/fill-mask", inputs="the [MASK] is big", targets=targets, first_piece=True)
    assert (one["token_str"], one["target"]) == ("un", "unaffable")


def test_padding_as_a_candidate_is_left_out_of_the_sequence(encoder: InProcessClient) -> None:
    vocabulary = encoder.backend.artifact.manifest.sizes["vocabulary"]
    first, _ = ask(encoder, "/fill-mask", inputs="the [MASK] is [MASK]", top_k=vocabulary)
    (padding,) = (one for one in first if one["token_str"] == "[PAD]")
    assert padding["sequence"] == "[CLS] the is [MASK] [SEP]"


def test_rounding_makes_no_probability_larger_than_1() -> None:
    search = Search(text_of(1), beam=1)
    logits, total = np.array([[1e-6]], np.float32), np.zeros((1, 1), np.float32)
    search.advance([{"top_ids": np.array([[5]]), "top_logits": logits, "log_sum_exp": total}])
    assert search.states == [((0, 5, 0.0),)]


def test_a_search_costs_a_pass_and_the_beam_for_each_further_mask(bert_artifact: Path) -> None:
    tasks = tasks_with_vectors(open_artifact(bert_artifact), max_waiting_tokens=79)
    assert tasks.max_tokens == (1 + 4 + 4) * 8 - 1
    search = fill_together(tasks, [text_of(1, 3, 5, length=8)], beam=4, top_k=1)
    with pytest.raises(TooLarge, match="9 passes of the model with 72 tokens"):
        asyncio.run(search)
