"""/score with `inputs`: how likely sentences are to a masked language model, as pseudo-log-likelihoods.

The sum of each token's log-probability if it alone is masked (Salazar et al. 2020), or, by default, it and the later
tokens of its word (Kauf and Ivanova 2023). Every token is a pass of the model.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from packbert.model_export.artifact.batch import Row

from ..errors import Invalid, NoSuchHead
from ..tokenization.encoding import NO_SPANS, Direction, EncodedText, EncodeOptions, no_tokens, too_long, word_runs
from ..tokenization.tokenizer import Tokenizer
from ..tokenization.tokens import TokenDetails, describe_tokens
from ..turns import in_turns
from .flow import Task, TaskResult, Tasks, in_chunks
from .inputs import TruncationFields
from .passes import OUTPUTS, check_cost, log_probabilities, name_passes
from .results import LongList

Variant = Literal["within_word", "original"]
WAY_OUT = "send shorter texts, or fewer at once"


class ScoredToken(BaseModel):
    piece: str = Field(description="as the vocabulary spells it", examples=["##able"])
    start: int = Field(description="first character in the text", examples=[5])
    stop: int = Field(description="one past the last character", examples=[9])
    word: int | None = Field(description="index of its word in the text, as /tokenize counts them", examples=[0])
    log_probability: float = Field(description="natural logarithm", examples=[-2.31], le=0)


class Likelihood(BaseModel):
    """How likely a text is; special tokens are not scored."""

    pseudo_log_likelihood: float = Field(description="the sum over all tokens", examples=[-23.1])
    per_token: float = Field(description="divided by the number of tokens", examples=[-2.31])
    per_word: float = Field(description="divided by the number of words", examples=[-3.85])
    pseudo_perplexity: float = Field(description="the exponential of -per_token", examples=[10.1])
    tokens: list[ScoredToken]
    variant: Variant
    cost_tokens: int = Field(description="tokens that the model computed: a pass for each token", examples=[120])


LikelihoodResponse = Likelihood | list[Likelihood]


async def score_sentences(tasks: Tasks, texts: Sequence[str], request: TruncationFields, variant: Variant) -> Task:
    """For each text what `Likelihood` documents.

    Raises NoSuchHead, Invalid with the text's index, and TooLarge if the passes are more than the queue takes.
    """
    tasks.require_head("fill_mask")
    if (mask_id := tasks.tokenizer.mask_id) < 0:
        raise NoSuchHead("this model's tokenizer has no mask token, and a likelihood needs one")
    tasks.check_count(texts)
    cost = "the texts have {} tokens or more, each of them a pass of the model"
    check = partial(tasks.check_tokens, cost=cost, done="read", way_out=WAY_OUT)
    options = tasks.reading(request, EncodeOptions(outputs=OUTPUTS))
    found = await tasks.tokenizer.read(texts, options, partial(describe_tokens, tasks.tokenizer), check=check)
    limit, direction = tasks.manifest.max_tokens, tasks.truncation(request)
    sentences = [_cut(details, limit, direction, index) async for index, details in in_turns(enumerate(found))]
    count, tokens = sum(len(one.own) for one in sentences), sum(map(_cost, sentences))
    check_cost(tasks, count, tokens, WAY_OUT)

    async def answer(result: TaskResult) -> LongList:
        result.truncated = sum(len(one) < len(whole) for one, whole in zip(sentences, found, strict=True))
        rows, value = iter(result.rows), LongList()
        async for sentence in in_turns(sentences):
            own = [next(rows) for _ in sentence.own]
            value.append(_describe(tasks.tokenizer, sentence, own, variant))
        return value

    passes = ((index, one) for index, own in enumerate(sentences) for one in _passes(own, variant, mask_id))
    return Task(partial(in_chunks, passes, tokens), answer, locate=partial(name_passes, count))


def _cut(details: TokenDetails, limit: int, direction: Direction | None, index: int) -> TokenDetails:
    """Raises Invalid for a text without tokens, and for a text with more than `limit` if nothing may be cut."""
    own, over = details.own, max(0, len(details) - limit)
    if not len(own):
        raise no_tokens("input", index)
    if over and direction is None:
        raise too_long(str(len(details)), limit, index)
    if over >= len(own):
        message = f"this model takes at most {limit} tokens: there is no room for a text, truncated or not"
        raise Invalid(message, code="too_long", index=index)
    return details.without(own[:over] if direction == "left" else own[len(own) - over :]) if over else details


def _cost(details: TokenDetails) -> int:
    """Tokens of all passes."""
    return len(details) * len(details.own)


def _passes(details: TokenDetails, variant: Variant, mask_id: int) -> Iterator[EncodedText]:
    """The text with each token masked in turn, and with `within_word` the later tokens of its word too."""
    own = details.own
    ends: Sequence[int] = range(1, len(own) + 1)
    if variant == "within_word":
        firsts, ends_of_words = word_runs(details.words[own])
        ends = np.repeat(ends_of_words, ends_of_words - firsts).tolist()
    for n, end in enumerate(ends):
        ids = details.ids.copy()
        ids[own[n:end]] = mask_id
        yield EncodedText(
            ids=ids,
            types=details.types,
            outputs=OUTPUTS,
            masks=(int(own[n]),),
            targets=(int(details.ids[own[n]]),),
            spans=NO_SPANS,
        )


def _describe(tokenizer: Tokenizer, details: TokenDetails, rows: Sequence[Row], variant: Variant) -> dict[str, Any]:
    """A text as in the response."""
    own, spans = details.own.tolist(), details.spans.tolist()
    words = [word if word >= 0 else None for word in details.words[own].tolist()]
    scored: list[dict[str, Any]] = []
    for at, word, row in zip(own, words, rows, strict=True):
        (start, stop), piece, ((score,),) = spans[at], details.piece(at, tokenizer), log_probabilities(row)
        scored.append({"piece": piece, "start": start, "stop": stop, "word": word, "log_probability": score})
    total = sum(one["log_probability"] for one in scored)
    per_token = total / len(scored)
    return {
        "pseudo_log_likelihood": total,
        "per_token": per_token,
        "per_word": total / len({*words}),
        "pseudo_perplexity": math.exp(-per_token) if -per_token < math.log(sys.float_info.max) else sys.float_info.max,
        "tokens": scored,
        "variant": variant,
        "cost_tokens": _cost(details),
    }
