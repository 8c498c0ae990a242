"""/fill-mask: candidates for each mask with their probabilities, as transformers' FillMaskPipeline gives them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from model_export.artifact.batch import Row
from service.errors import Invalid, TooLarge
from service.tasks.base import TaskResult, Tasks, as_list
from service.tasks.parameters import merge_parameters
from service.tasks.schemas import FillMaskRequest
from service.tokenization.encoding import EncodedText, EncodeOptions

OUTPUTS = frozenset({"top_logits", "top_ids", "log_sum_exp"})
DEFAULT_TOP_K = 5
MAX_ANSWER_TOKENS = 8_000_000  # in the sequences of a response: about 60 MB
MIN_CANDIDATE_TOKENS = 64  # the sequence of a candidate counts as at least so many tokens
MAX_NAMED_PIECES, MAX_NAMED_CHARACTERS = 10, 60  # of a target, in an error message
INPUTS_PER_TURN = 8  # number of inputs formatted before the event loop gets a turn


async def fill_mask(tasks: Tasks, request: FillMaskRequest, *, timeout_seconds: float) -> TaskResult:
    """One input (or a list of one) gives one result, a longer list a list of results."""
    tasks.require_head("fill_mask")
    top_k, targets, first_piece = _parameters(tasks, request)
    words: dict[int, str] = {}
    if targets is not None:
        words, timeout_seconds = await tasks.prepare(target_ids(tasks, targets, first_piece), timeout_seconds)

    answer = AnswerSize(min(top_k, len(words) or top_k))

    def check(sequences: Sequence[EncodedText], first: int) -> None:
        check_masks(tasks, sequences, first)
        answer.add(sequences)

    texts, options = as_list(request.inputs), _options(top_k, tuple(sorted(words)))
    result = await tasks.run(texts, request, options, check=check, timeout_seconds=timeout_seconds)
    value = []
    for tokens, row in zip(result.sequences, result.rows, strict=True):
        value.append(await _fill(tasks, tokens, row, top_k, words))
        if len(value) % INPUTS_PER_TURN == 0:
            await asyncio.sleep(0)
    return result.finish(value if len(value) > 1 else value[0])


def check_masks(tasks: Tasks, sequences: Sequence[EncodedText], first: int) -> None:
    """Raises Invalid with the index of the first text without a mask; `first` is that of the first one."""
    for index, tokens in enumerate(sequences, first):
        if not tokens.masks:
            cut = f"was cut away with the end of the text (at most {tasks.manifest.max_tokens} tokens)"
            reason = cut if tokens.truncated else "was not found in the input"
            raise Invalid(f"the mask token {tasks.tokenizer.mask_token} {reason}", code="no_mask", index=index)


@dataclass(slots=True)
class AnswerSize:
    """The size of a response with so many candidates for each mask, each with its text."""

    candidates: int
    masks: int = 0
    tokens: int = 0

    def add(self, sequences: Sequence[EncodedText]) -> None:
        """Raises TooLarge where the response exceeds MAX_ANSWER_TOKENS."""
        for one in sequences:
            self.masks += len(one.masks)
            self.tokens += len(one.masks) * self.candidates * max(len(one.ids), MIN_CANDIDATE_TOKENS)
        if self.tokens > MAX_ANSWER_TOKENS:
            made = f"{self.candidates} candidates for each of {self.masks} masks, each with its whole text, make"
            raise TooLarge(
                f"{made} a response of {self.tokens} tokens; at most {MAX_ANSWER_TOKENS} are allowed: lower top_k or "
                "split the request"
            )


def _parameters(tasks: Tasks, request: FillMaskRequest) -> tuple[int, list[str] | None, bool]:
    """top_k, targets and first_piece, from the top level or from `parameters`; raises Invalid for both."""
    asked = request if request.parameters is None else merge_parameters(request)
    top_k = DEFAULT_TOP_K if asked.top_k is None else asked.top_k
    most = min(tasks.limits.max_top_k, tasks.manifest.sizes["vocabulary"])
    if top_k > most:
        raise Invalid(f"top_k is {top_k}; at most {most} is allowed (BERT_MAX_TOP_K, vocabulary size)", code="top_k")
    return top_k, None if asked.targets is None else as_list(asked.targets), asked.first_piece is True


async def target_ids(tasks: Tasks, targets: Sequence[str], first_piece: bool) -> dict[int, str]:
    """The vocabulary ids to score, each with the first of the targets that it stands for.

    Raises Invalid for a target that is not one known piece. With `first_piece` the first piece stands for the target,
    be it the unknown token, and a target without pieces is left out: as transformers' FillMaskPipeline does.
    """
    most = tasks.limits.max_top_k
    if len(targets) > most:
        raise Invalid(f"{len(targets)} targets; at most {most} are allowed (BERT_MAX_TOP_K)", code="targets")
    found: dict[int, str] = {}
    for target, ids in zip(targets, await tasks.tokenizer.word_ids(targets), strict=True):
        if not first_piece:
            _check_single(tasks, target, ids)
        if ids:
            found.setdefault(ids[0], target)
    if not found:
        raise Invalid("targets has no word that can be scored: send at least one", code="targets")
    return found


def _check_single(tasks: Tasks, target: str, ids: Sequence[int]) -> None:
    """Raises Invalid where `target` is not one piece of the vocabulary."""
    tokenizer, unknown = tasks.tokenizer, tasks.manifest.special_tokens.get("unk", -1)
    pieces = ", ".join([tokenizer.piece(token_id) for token_id in ids[:MAX_NAMED_PIECES]])
    more = ", ..." if len(ids) > MAX_NAMED_PIECES else ""
    if len(ids) > 1:
        fault = f"is {len(ids)} pieces ({pieces}{more}), and a mask stands for one"
    elif not ids:
        fault = "has no pieces"
    elif ids[0] == unknown and target != tokenizer.piece(unknown):
        fault = f"is not in the vocabulary ({pieces})"
    else:
        return
    way_out = 'send a word of one piece, or "first_piece": true to score the first piece as transformers does'
    raise Invalid(f"the target {target[:MAX_NAMED_CHARACTERS]!r} {fault}: {way_out}", code="targets")


@lru_cache(maxsize=64)
def _options(top_k: int, targets: tuple[int, ...]) -> EncodeOptions:
    outputs = OUTPUTS | {"target_logits"} if targets else OUTPUTS
    return EncodeOptions(outputs=outputs, top_k=max(1, top_k), targets=targets, masks=True)


async def _fill(tasks: Tasks, tokens: EncodedText, row: Row, top_k: int, words: Mapping[int, str]) -> list[Any]:
    """The candidates of each mask, with the targets in `words`; with a single mask, without the outer list."""
    per_mask = []
    for n, position in enumerate(tokens.masks):
        if tokens.targets:
            logits = row["target_logits"].reshape(len(tokens.masks), -1)[n]
            order = np.argsort(-logits, kind="stable")[:top_k]
            ids, logits = np.array(tokens.targets)[order], logits[order]
        else:
            ids, logits = row["top_ids"][n][:top_k], row["top_logits"][n][:top_k]
        probabilities = np.exp(logits.astype(np.float64) - float(row["log_sum_exp"][n, 0]))
        candidates = await _describe(tasks, tokens, position, ids.tolist(), probabilities.tolist())
        if words:
            candidates = [one | {"target": words[one["token"]]} for one in candidates]
        per_mask.append(candidates)
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
