"""/fill-mask: candidates for each mask with their probabilities, as transformers' FillMaskPipeline gives them."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from model_export.artifact.batch import Row
from service.errors import Invalid, TooLarge
from service.tasks.base import TaskResult, Tasks, as_list
from service.tasks.schemas import FillMaskRequest
from service.tasks.tokenizer import EncodedText, EncodeOptions

OUTPUTS = frozenset({"top_logits", "top_ids", "log_sum_exp"})
DEFAULT_TOP_K = 5
MAX_ANSWER_TOKENS = 8_000_000  # in the sequences of a response: about 60 MB
MIN_CANDIDATE_TOKENS = 64  # the sequence of a candidate counts as at least so many tokens
INPUTS_PER_TURN = 8  # number of inputs formatted before the event loop gets a turn


async def fill_mask(tasks: Tasks, request: FillMaskRequest, *, timeout_seconds: float) -> TaskResult:
    """One input (or a list of one) gives one result, a longer list a list of results."""
    tasks.require_head("fill_mask")
    top_k, targets = await _candidates(tasks, request)

    def check(sequences: Sequence[EncodedText]) -> None:
        check_masks(tasks, sequences)
        check_answer_size(sequences, min(top_k, len(targets) or top_k))

    texts, options = as_list(request.inputs), _options(top_k, targets)
    result = await tasks.run(texts, request, options, check=check, timeout_seconds=timeout_seconds)
    value = []
    for tokens, row in zip(result.sequences, result.rows, strict=True):
        value.append(await _fill(tasks, tokens, row, top_k))
        if len(value) % INPUTS_PER_TURN == 0:
            await asyncio.sleep(0)
    return result.finish(value if len(value) > 1 else value[0])


def check_masks(tasks: Tasks, sequences: Sequence[EncodedText]) -> None:
    """Raises Invalid with the index of the first text without a mask."""
    for index, tokens in enumerate(sequences):
        if not tokens.masks:
            cut = f"was cut away with the end of the text (at most {tasks.manifest.max_tokens} tokens)"
            reason = cut if tokens.truncated else "was not found in the input"
            raise Invalid(f"the mask token {tasks.tokenizer.mask_token} {reason}", code="no_mask", index=index)


def check_answer_size(sequences: Sequence[EncodedText], candidates: int) -> None:
    """Raises TooLarge if so many candidates for each mask, each with its text, exceed MAX_ANSWER_TOKENS."""
    size = sum([len(one.masks) * candidates * max(len(one.ids), MIN_CANDIDATE_TOKENS) for one in sequences])
    if size > MAX_ANSWER_TOKENS:
        masks = sum(len(one.masks) for one in sequences)
        raise TooLarge(
            f"{candidates} candidates for each of {masks} masks, each with its whole text, make a response of {size} "
            f"tokens; at most {MAX_ANSWER_TOKENS} are allowed: lower top_k or split the request"
        )


async def _candidates(tasks: Tasks, request: FillMaskRequest) -> tuple[int, tuple[int, ...]]:
    """The number of candidates, and the ids of the targets (none: the whole vocabulary)."""
    nested, limits = request.parameters, tasks.limits
    if nested and (request.top_k is not None or request.targets is not None):
        raise Invalid("top_k/targets given twice: at the top level and under parameters", code="parameters")
    top_k, targets = (nested.top_k, nested.targets) if nested else (request.top_k, request.targets)
    top_k, most = DEFAULT_TOP_K if top_k is None else top_k, min(limits.max_top_k, tasks.manifest.sizes["vocabulary"])
    if top_k > most:
        raise Invalid(f"top_k is {top_k}; at most {most} is allowed (BERT_MAX_TOP_K, vocabulary size)", code="top_k")
    if targets is None:
        return top_k, ()
    words = as_list(targets)
    if len(words) > limits.max_top_k:
        raise Invalid(f"{len(words)} targets; at most {limits.max_top_k} are allowed (BERT_MAX_TOP_K)", code="targets")
    ids = tuple(sorted(set(await tasks.tokenizer.first_ids(words))))
    if not ids:
        raise Invalid("targets has no word that can be scored: send at least one", code="targets")
    return top_k, ids


@lru_cache(maxsize=64)
def _options(top_k: int, targets: tuple[int, ...]) -> EncodeOptions:
    outputs = OUTPUTS | {"target_logits"} if targets else OUTPUTS
    return EncodeOptions(outputs=outputs, top_k=max(1, top_k), targets=targets, masks=True)


async def _fill(tasks: Tasks, tokens: EncodedText, row: Row, top_k: int) -> list[Any]:
    """The candidates of each mask; with a single mask, its candidates without the outer list."""
    per_mask = []
    for n, position in enumerate(tokens.masks):
        if tokens.targets:
            logits = row["target_logits"].reshape(len(tokens.masks), -1)[n]
            order = np.argsort(-logits, kind="stable")[:top_k]
            ids, logits = np.array(tokens.targets)[order], logits[order]
        else:
            ids, logits = row["top_ids"][n][:top_k], row["top_logits"][n][:top_k]
        probabilities = np.exp(logits.astype(np.float64) - float(row["log_sum_exp"][n, 0]))
        per_mask.append(await _describe(tasks, tokens, position, ids.tolist(), probabilities.tolist()))
    return per_mask if len(per_mask) > 1 else per_mask[0]


async def _describe(
    tasks: Tasks, tokens: EncodedText, position: int, ids: list[int], scores: list[float]
) -> list[dict[str, Any]]:
    """The candidates `ids` for the mask at `position`, as in the response."""
    pad, all_ids = tasks.manifest.special_tokens.get("pad"), tokens.ids.tolist()
    before, after = ([i for i in side if i != pad] for side in (all_ids[:position], all_ids[position + 1 :]))
    filled = [[*before, candidate, *after] if candidate != pad else before + after for candidate in ids]
    single = [[candidate] for candidate in ids]
    sequences = await tasks.tokenizer.decode(filled, skip_special_tokens=len(tokens.masks) == 1)
    words = await tasks.tokenizer.decode(single, skip_special_tokens=False)
    return [
        {"score": score, "token": token_id, "token_str": word, "sequence": sequence}
        for score, token_id, word, sequence in zip(scores, ids, words, sequences, strict=True)
    ]
