"""Fills masks: request and response models, and the candidates of each mask."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from packbert.model_export.artifact.batch import Row

from ..errors import Invalid, TooLarge
from ..tokenization.chunks import TextChunk, each
from ..tokenization.encoding import EncodedText, EncodeOptions
from ..turns import in_turns
from .flow import Check, Task, TaskResult, Tasks, check_chunk
from .inputs import MAX_TOP_K, PARAMETERS, Body, ClientFields, StringOrList, TruncationFields, as_list, merge_parameters
from .joint import DEFAULT_TOP_K, OUTPUTS, choose_beam, fill_together
from .passes import Ids, Scores, score_words, word_score
from .results import LongList

MAX_ANSWER_TOKENS = 4_000_000  # in the sequences of a response: about 30 MB, and 30 MB of JSON
MIN_CANDIDATE_TOKENS = 64  # the sequence of a candidate counts as at least so many tokens
MAX_NAMED_PIECES, MAX_NAMED_CHARACTERS = 10, 60  # of a target, in an error message


class FillMaskParameters(Body):
    top_k: int | None = Field(None, ge=0, description="candidates per mask, or with joint per input (default 5)")
    targets: StringOrList | None = Field(
        None,
        description="score only these words; probabilities are over the vocabulary. A word of several pieces takes the "
        "place of the mask with a mask for each piece, and its pieces are scored from left to right",
    )
    first_piece: bool | None = Field(
        None, description="true: score the first piece of a target that has several, as transformers does"
    )
    joint: bool | None = Field(
        None,
        description="true: fill all masks of an input together, the mask with the most certain candidate first; each "
        "candidate fills all of them",
    )
    beam: int | None = Field(
        None,
        ge=1,
        description="with joint: how many partly filled texts are kept while masks are filled (default 10, or top_k "
        "where that is more)",
    )


class FillMaskRequest(ClientFields, TruncationFields, FillMaskParameters):
    inputs: StringOrList = Field(examples=["Paris is the capital of [MASK]."])
    parameters: FillMaskParameters | None = Field(None, description=PARAMETERS)


class Candidate(BaseModel):
    score: float = Field(
        description="probability over the whole vocabulary at the mask; of several pieces their geometric mean",
        examples=[0.41],
    )
    token: int = Field(description="of several pieces the first", examples=[2605])
    token_str: str = Field(examples=["france"])
    sequence: str = Field(description="the text with this token", examples=["paris is the capital of france."])
    target: str = Field("", description="with targets: the one that this token stands for", examples=["France"])
    tokens: list[int] = Field([], description="where a target has several pieces: the ids of all", examples=[[2605]])
    pieces: list[str] = Field([], description="likewise: as the vocabulary spells them", examples=[["france"]])
    log_probability: float = Field(
        0.0, description="likewise: the sum of the pieces' log-probabilities, each given those before it", le=0
    )
    log_probability_per_piece: float = Field(
        0.0, description="likewise: divided by the number of pieces; `score` is its exponential", le=0
    )


class JointCandidate(BaseModel):
    """One way to fill all masks of an input; lists have an item for each mask, in the order of the text."""

    score: float = Field(description="the exponential of log_probability", examples=[0.031])
    log_probability: float = Field(description="the sum of log_probabilities", examples=[-3.47])
    tokens: list[int] = Field(examples=[[2605, 981]])
    pieces: list[str] = Field(description="as the vocabulary spells them", examples=[["fran", "##ce"]])
    log_probabilities: list[float] = Field(
        description="of each piece, given the text with the pieces that were filled before it", examples=[[-1.2, -2.27]]
    )
    order: list[int] = Field(description="the masks in the order in which they were filled", examples=[[1, 0]])
    texts: list[str] = Field(description="the text of each run of neighbouring masks", examples=[["france"]])
    sequence: str = Field(description="the text with all pieces", examples=["paris is the capital of france."])


MaskCandidates = list[Candidate] | list[list[Candidate]]  # of an input with a single mask, with several
FillMaskResponse = MaskCandidates | list[MaskCandidates] | list[JointCandidate] | list[list[JointCandidate]]


async def fill_mask(tasks: Tasks, request: FillMaskRequest) -> Task:
    """Candidates for masked words, in the format of transformers' FillMaskPipeline. A single input, also in a list,
    gives a result; a longer list gives a list of results."""
    asked = request if request.parameters is None else merge_parameters(request)
    if asked.joint:
        return await _fill_together(tasks, asked)
    top_k, words = _top_k(tasks, asked), dict[Ids, str]()
    if asked.targets is not None:
        words = await find_targets(tasks, as_list(asked.targets), first_piece=asked.first_piece is True)
        if any(len(ids) > 1 for ids in words):
            return await _fill_words(tasks, asked, words, top_k)
    options = _options(top_k, tuple(sorted(ids[0] for ids in words)))
    chunks = partial(tasks.chunks, asked.inputs, asked, options)
    check = answer_check(tasks, min(top_k, len(words) or top_k))
    return Task(chunks, partial(_answer, tasks, top_k, words), check)


async def _answer(tasks: Tasks, top_k: int, words: Mapping[Ids, str], result: TaskResult) -> Any:
    if len(result.rows) == 1:
        return await _fill(tasks, result.sequences[0], result.rows[0], top_k, words)
    texts = in_turns(zip(result.sequences, result.rows, strict=True))
    return _unwrap([await _fill(tasks, tokens, row, top_k, words) async for tokens, row in texts])


async def _fill_words(tasks: Tasks, asked: FillMaskRequest, words: Mapping[Ids, str], top_k: int) -> Task:
    """For targets of which some have several pieces."""
    texts = await _read(tasks, asked, answer_check(tasks, min(top_k, len(words))))

    async def describe(text: EncodedText, logs: Scores) -> Any:
        per_mask = []
        async for mask, position in in_turns(enumerate(text.masks)):
            found = {ids: word_score(ids, logs[mask, ids]) for ids in words}
            order = sorted(found, key=lambda ids: -found[ids])[:top_k]
            candidates = await _describe(tasks, text, position, order, [found[ids] for ids in order], words)
            for candidate, ids in zip(candidates, order, strict=True):
                log = logs[mask, ids]
                candidate |= {"tokens": list(ids), "pieces": list(map(tasks.tokenizer.piece, ids))}
                candidate |= {"log_probability": log, "log_probability_per_piece": log / len(ids)}
            per_mask.append(candidates)
        return _unwrap(per_mask)

    return (await score_words(tasks, texts, list(words), describe)).then(lambda value, _: _unwrap(value))


async def _fill_together(tasks: Tasks, asked: FillMaskRequest) -> Task:
    """For `joint`: a list of candidates for each input, of which each fills all masks."""
    if asked.targets is not None:
        raise Invalid("targets are scored at each mask by itself, and joint fills all: send one of them", code="joint")
    beam, top_k = choose_beam(tasks, asked.beam, asked.top_k)
    texts = await _read(tasks, asked, answer_check(tasks, top_k, joint=True))
    task = await fill_together(tasks, texts, beam=beam, top_k=top_k)
    return task if len(texts) > 1 else task.then(lambda value, _: value[0])


async def _read(tasks: Tasks, asked: FillMaskRequest, check: Check) -> list[EncodedText]:
    """The tokens of the texts, all with masks; raises what `fill_mask` does before the model runs."""
    read = list[EncodedText]()
    async for chunk in each(tasks.chunks(asked.inputs, asked, _options(1, ()))):
        check_chunk(chunk, check)
        read += chunk.work
    return read


def answer_check(tasks: Tasks, candidates: int, *, joint: bool = False) -> Check:
    """For a response with so many candidates for each mask, or for each text (`joint`), each with its whole text.

    Raises Invalid with the index of a text without a mask, TooLarge over MAX_ANSWER_TOKENS.
    """
    masks = tokens = 0

    def check(chunk: TextChunk) -> None:
        nonlocal masks, tokens
        for index, one in zip(chunk.owners, chunk.work, strict=True):
            if not one.masks:
                raise _no_mask(tasks, one, index)
            own = 1 if joint else len(one.masks)
            masks += own
            tokens += own * candidates * max(len(one.ids), MIN_CANDIDATE_TOKENS)
        if tokens > MAX_ANSWER_TOKENS:
            filled = f"{masks} texts" if joint else f"{masks} masks"
            made = (
                f"{candidates} candidates for each of {filled}, each with its whole text, make a response of {tokens}"
            )
            limit = f"at most {MAX_ANSWER_TOKENS} are allowed: lower top_k or split the request"
            raise TooLarge(f"{made} tokens; {limit}")

    return check


def _no_mask(tasks: Tasks, tokens: EncodedText, index: int) -> Invalid:
    cut = f"was cut away (at most {tasks.manifest.max_tokens} tokens): shorten the text, or cut its other side"
    reason = cut if tokens.truncated else "was not found in the input"
    return Invalid(f"the mask token {tasks.tokenizer.mask_token} {reason}", code="no_mask", index=index)


def _top_k(tasks: Tasks, asked: FillMaskRequest) -> int:
    if asked.beam is not None:
        raise Invalid('beam is the width of a search for all masks together: send "joint": true too', code="beam")
    top_k = DEFAULT_TOP_K if asked.top_k is None else asked.top_k
    most = min(MAX_TOP_K, tasks.manifest.sizes["vocabulary"])
    if top_k > most:
        raise Invalid(f"top_k is {top_k}; at most {most} are allowed: send 1 to {most}", code="top_k")
    return top_k


async def find_targets(tasks: Tasks, targets: Sequence[str], *, first_piece: bool) -> dict[Ids, str]:
    """The vocabulary ids to score, each with the first of the targets that they stand for.

    Raises Invalid for a target without pieces or with an unknown piece. With `first_piece` the first piece stands for
    the target, be it the unknown token, and a target without pieces is left out, as in transformers' FillMaskPipeline.
    """
    if len(targets) > MAX_TOP_K:
        raise Invalid(f"{len(targets)} targets; at most {MAX_TOP_K} are allowed: split them", code="targets")
    found: dict[Ids, str] = {}
    for target, ids in zip(targets, await tasks.tokenizer.word_ids(targets), strict=True):
        if not first_piece:
            _check_known(tasks, target, ids)
        if ids:
            found.setdefault(tuple(ids[:1] if first_piece else ids), target)
    if not found:
        raise Invalid("targets has no word that can be scored: send at least one", code="targets")
    return found


def _check_known(tasks: Tasks, target: str, ids: Sequence[int]) -> None:
    """Raises Invalid if `target` has no pieces, or a piece that is not in the vocabulary."""
    tokenizer, unknown = tasks.tokenizer, tasks.manifest.special_tokens.get("unk", -1)
    if ids and (unknown not in ids or target == tokenizer.piece(unknown)):
        return
    pieces = ", ".join([tokenizer.piece(token_id) for token_id in ids[:MAX_NAMED_PIECES]])
    more = ", ..." if len(ids) > MAX_NAMED_PIECES else ""
    fault = f"is not in the vocabulary ({pieces}{more})" if ids else "has no pieces"
    way_out = 'leave it out, or send "first_piece": true to score the first piece as transformers does'
    raise Invalid(f"the target {target[:MAX_NAMED_CHARACTERS]!r} {fault}: {way_out}", code="targets")


@lru_cache(maxsize=64)
def _options(top_k: int, targets: tuple[int, ...]) -> EncodeOptions:
    outputs = OUTPUTS | {"target_logits"} if targets else OUTPUTS
    return EncodeOptions(outputs=outputs, top_k=max(1, top_k), targets=targets, masks=True)


async def _fill(tasks: Tasks, tokens: EncodedText, row: Row, top_k: int, words: Mapping[Ids, str]) -> Any:
    """The candidates of each mask, with the targets in `words`; with a single mask, without the outer list."""
    per_mask = []
    for n, position in enumerate(tokens.masks):
        if n:  # other requests get a turn
            await asyncio.sleep(0)
        if tokens.targets:
            logits = row["target_logits"].reshape(len(tokens.masks), -1)[n]
            order = np.argsort(-logits, kind="stable")[:top_k]
            ids, logits = np.array(tokens.targets)[order], logits[order]
        else:
            ids, logits = row["top_ids"][n][:top_k], row["top_logits"][n][:top_k]
        probabilities = np.exp(logits.astype(np.float64) - float(row["log_sum_exp"][n, 0]))
        single = [(token_id,) for token_id in ids.tolist()]
        per_mask.append(await _describe(tasks, tokens, position, single, probabilities.tolist(), words))
    return _unwrap(per_mask)


def _unwrap(answers: list[Any]) -> Any:
    """The answers of several texts or masks; a single answer without a list."""
    return LongList(answers) if len(answers) > 1 else answers[0]


async def _describe(
    tasks: Tasks,
    tokens: EncodedText,
    position: int,
    candidates: Sequence[Ids],
    scores: Sequence[float],
    targets: Mapping[Ids, str],
) -> list[dict[str, Any]]:
    """The candidates, each the ids of its pieces, for the mask at `position`, as in the response."""
    pad, ids = tasks.manifest.special_tokens.get("pad"), tokens.ids.tolist()
    if pad in ids:
        position -= ids[:position].count(pad)
        ids = [one for one in ids if one != pad]
    how: Any = {"pad": pad, "skip_special_tokens": len(tokens.masks) == 1}
    texts = await tasks.tokenizer.decode_candidates(ids[:position], candidates, ids[position + 1 :], **how)
    found: list[dict[str, Any]] = [
        {"score": score, "token": ids[0], "token_str": word, "sequence": sequence}
        for score, ids, (word, sequence) in zip(scores, candidates, texts, strict=True)
    ]
    for candidate, ids in zip(found, candidates if targets else (), strict=False):
        candidate["target"] = targets[ids]
    return found
