"""/tag: a fine-tuned classifier's tags for a text's tokens, as transformers' TokenClassificationPipeline gives them."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from operator import attrgetter, itemgetter
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from ..errors import Invalid
from ..tokenization.encoding import EncodedText, EncodeOptions
from ..turns import in_turns
from .embed import asks_for_windows, read_texts, windows_of_texts
from .flow import Task, TaskResult, Tasks, check_sum
from .inputs import (
    PARAMETERS,
    ClientFields,
    FailFastList,
    StringOrList,
    TruncationFields,
    WindowFields,
    as_list,
    merge_parameters,
)
from .predict import Floats, softmax
from .results import LongList

OPTIONS = EncodeOptions(outputs=frozenset({"tags"}), spans=True)
OUTSIDE = ("O",)  # the tag of tokens that belong to no entity; left out of the response by default
WORD_SCORES: dict[str, Callable[[Floats], Floats]] = {  # strategy -> the scores [tags] of a word by its [tokens, tags]
    "first": lambda scores: scores[0],
    "average": lambda scores: scores.mean(axis=0),
    "max": lambda scores: scores[scores.max(axis=-1).argmax()],
}
Tagged = dict[str, Any]  # a token with its best tag, or a group of them, as in the response
Strategy = Literal["none", "simple", "first", "average", "max"]


class TagParameters(WindowFields):
    aggregation_strategy: Strategy | None = Field(
        None,
        description="none (default): single tokens; simple: groups; first, average, max: groups of whole words, each "
        "with the tag of its first token, of its tokens' mean scores, or of its most certain token; windows need one "
        "other than none",
    )
    ignore_labels: FailFastList[str] | None = Field(None, description='labels to leave out (default ["O"])')


class TagRequest(ClientFields, TruncationFields, TagParameters):
    inputs: StringOrList = Field(examples=["My name is Clara and I live in Berkeley."])
    parameters: TagParameters | None = Field(None, description=PARAMETERS)


class Tag(BaseModel):
    entity: str = Field("", description="with aggregation_strategy none", examples=["B-PER"])
    entity_group: str = Field("", description="with any other aggregation_strategy", examples=["PER"])
    score: float = Field(examples=[0.99])
    index: int = Field(0, description="index of the token, with aggregation_strategy none", examples=[4])
    word: str = Field(examples=["clara"])
    start: int = Field(description="first character in the text", examples=[11])
    end: int = Field(description="one past the last character", examples=[16])


TagResponse = list[Tag] | list[list[Tag]]


async def tag(tasks: Tasks, request: TagRequest) -> Task:
    """A classifier's tags for the tokens of a text, in the format of transformers' TokenClassificationPipeline. A list
    of tokens, or of groups of tokens, for one text; a list of lists for several."""
    request, texts = merge_parameters(request), as_list(request.inputs)
    if asks_for_windows(request) and request.aggregation_strategy in (None, "none"):
        message = "the groups of windows are joined, and aggregation_strategy none makes no groups"
        raise Invalid(f"{message}: send simple, first, average or max", code="stride")
    chunks = await read_texts(tasks, texts, request, OPTIONS)

    async def answer(result: TaskResult) -> Any:
        value: list[list[Tagged]] = [[] for _ in texts]
        async for index, tokens, row in in_turns(zip(result.owners, result.sequences, result.rows, strict=True)):
            scores = softmax(row["tags"].astype(np.float64))
            value[index] += _tag_sequence(tasks, texts[index], tokens, scores, request)
        windows = windows_of_texts(result) if result.sequences[0].added is not None else ()
        async for index, own in in_turns(enumerate(windows)):
            if own.stop - own.start > 1:
                value[index] = _join_windows(value[index])
        return LongList(value) if isinstance(request.inputs, list) else value[0]

    cost, way_out = "the texts have {} tokens or more", "send it in parts"
    check = partial(tasks.check_tokens, cost=cost, done="tagged at once", way_out=way_out)
    return Task(chunks, answer, check_sum(attrgetter("tokens"), check))


def _tag_sequence(tasks: Tasks, text: str, tokens: EncodedText, scores: Floats, asked: TagParameters) -> list[Tagged]:
    """The tokens or groups of a sequence, without the labels to ignore; `scores` [length, tags]."""
    tagged, strategy = _tag_tokens(tasks, text, tokens, scores), asked.aggregation_strategy or "none"
    ignored = OUTSIDE if asked.ignore_labels is None else asked.ignore_labels
    if strategy in WORD_SCORES:
        tagged = _tag_words(tasks, text, tokens, tagged, scores, WORD_SCORES[strategy])
    if strategy == "none":
        return [one for one in tagged if one["entity"] not in ignored]
    return [one for one in _group(tasks, tagged) if one["entity_group"] not in ignored]


def _join_windows(groups: Sequence[Tagged]) -> list[Tagged]:
    """Of groups that overlap, which two windows found, the longer; of equally long groups the more certain.

    As TokenClassificationPipeline.aggregate_overlapping_entities.
    """
    joined: list[Tagged] = []
    for group in sorted(groups, key=lambda one: one["start"]):
        last = joined[-1] if joined else None
        if last is None or not last["start"] <= group["start"] < last["end"]:
            joined.append(group)
        elif (group["end"] - group["start"], group["score"]) > (last["end"] - last["start"], last["score"]):
            joined[-1] = group
    return joined


def _tag_tokens(tasks: Tasks, text: str, tokens: EncodedText, scores: Floats) -> list[Tagged]:
    """The text's own tokens; `scores` [length, tags]. `index` counts special tokens too."""
    unknown, best = tasks.manifest.special_tokens.get("unk"), scores.argmax(axis=-1).tolist()
    found = []
    for index, (token_id, (start, end)) in enumerate(zip(tokens.ids.tolist(), tokens.spans.tolist(), strict=True)):
        if start >= 0:
            word = text[start:end] if token_id == unknown else tasks.tokenizer.piece(token_id)
            label, score = tasks.manifest.labels[best[index]], float(scores[index, best[index]])
            found.append({"entity": label, "score": score, "index": index, "word": word, "start": start, "end": end})
    return found


def _tag_words(
    tasks: Tasks,
    text: str,
    tokens: EncodedText,
    tagged: Sequence[Tagged],
    scores: Floats,
    combine: Callable[[Floats], Floats],
) -> list[Tagged]:
    """The words of the text's own tokens, each with a tag, as TokenClassificationPipeline.gather_pre_entities finds.

    A token continues a word if its piece is longer than its characters (##ing), or, for vocabularies without such a
    prefix, if no space is before it.
    """
    unknown, marked = tasks.manifest.special_tokens.get("unk"), tasks.tokenizer.marks_subwords

    def begins(token: Tagged) -> bool:
        start, end = token["start"], token["end"]
        if tokens.ids[token["index"]] == unknown:
            return True
        return bool(len(token["word"]) == end - start if marked else start == 0 or " " in text[start - 1 : start + 1])

    words = []
    for word in _runs(tagged, map(begins, tagged)):
        own = combine(scores[[token["index"] for token in word]])  # [tags]
        best = int(own.argmax())
        words.append(_join(tasks, word, "entity", tasks.manifest.labels[best], float(own[best])))
    return words


def _runs(tagged: Sequence[Tagged], begins: Iterable[bool]) -> list[list[Tagged]]:
    """The tokens in runs; `begins`: whether a run begins with each token."""
    numbered = groupby(zip(accumulate(begins), tagged, strict=False), itemgetter(0))
    return [[token for _, token in run] for _, run in numbered]


def _join(tasks: Tasks, run: Sequence[Tagged], kind: str, label: str, score: float) -> Tagged:
    """A word, or a group of tokens; `kind` is the name of the label."""
    word = tasks.tokenizer.join_pieces([token["word"] for token in run])
    return {kind: label, "score": score, "word": word, "start": run[0]["start"], "end": run[-1]["end"]}


def _group(tasks: Tasks, tagged: Sequence[Tagged]) -> list[Tagged]:
    """Neighbours of the same entity together; a B- starts a new group."""
    begins = (one["entity"].startswith("B-") or _entity(one) != _entity(last) for last, one in pairwise(tagged))
    groups = []
    for group in _runs(tagged, chain([True], begins)):
        score = float(np.mean([token["score"] for token in group]))
        groups.append(_join(tasks, group, "entity_group", group[0]["entity"].split("-", 1)[-1], score))
    return groups


def _entity(token: Tagged) -> str:
    """The tag without its B- or I-."""
    entity: str = token["entity"]
    return entity[2:] if entity.startswith(("B-", "I-")) else entity
