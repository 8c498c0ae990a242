"""/tokenize and /decode, in the format of text-embeddings-inference. The model does not run."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, cast

import numpy as np
from pydantic import BaseModel, Field

from ..errors import Invalid, TooLarge
from ..tokenization.encoding import EncodeOptions, PromptedTexts, Text, Texts
from ..tokenization.tokens import TokenDetails, describe_tokens
from ..turns import in_turns
from .embed import stated_prompt
from .flow import Task, TaskResult, Tasks
from .inputs import FailFastList, ModelField, Pair, SpecialTokensField, as_text
from .results import MadeList

WRONG_PAIR = "a pair has two texts, this one has {}; inputs takes texts and pairs"
MAX_TOKENS = 300_000  # in a response that shows them: about 24 MB, 45 MB with details


class TokenizeRequest(ModelField, SpecialTokensField):
    inputs: str | Pair | FailFastList[str | Pair | FailFastList[str]] = Field(
        examples=["my dog is hairy"],
        description='a text, a list of texts, or pairs: {"text", "text_pair"} or ["a", "b"] inside a list',
    )
    add_special_tokens: bool = Field(True, description="with [CLS] and [SEP], as the model gets the text")
    prompt_name: str | None = Field(None, description="one of the checkpoint's prompts, put before each text")
    details: bool = Field(
        False, description="also the piece, word, segment and position of each token, and whether it is unknown"
    )
    count: bool = Field(False, description="answer only with the number of tokens of each input")
    mask: bool = Field(False, description="parse the mask token as /fill-mask does; other routes read it as text")


class Token(BaseModel):
    id: int = Field(examples=[2026])
    text: str = Field(description="its characters in the input; the piece of a special token", examples=["my"])
    special: bool
    start: int | None = Field(description="first character in its text; null for special tokens", examples=[0])
    stop: int | None = Field(description="one past the last character", examples=[2])
    piece: str = Field("", description="with details: as the vocabulary spells it", examples=["my"])
    unknown: bool = Field(False, description="with details: no piece of the vocabulary spells these characters")
    word: int | None = Field(None, description="with details: index of its word in its text", examples=[0])
    side: int | None = Field(None, description="with details: 0 or 1, its text in a pair", examples=[0])
    segment: int = Field(0, description="with details: the segment that the model gets")
    position: int = Field(0, description="with details: the position that the model gets", examples=[1])


class DecodeRequest(ModelField):
    ids: FailFastList[int] | FailFastList[FailFastList[int]] = Field(
        examples=[[2026, 3899]], description="the ids of a text, or a list of them for several"
    )
    skip_special_tokens: bool = True


TokenizeResponse = list[list[Token]] | Annotated[list[int], Field(description="with count")]
DecodeResponse = Annotated[list[str], Field(description="a text for each list of ids", examples=[["my dog"]])]


async def tokenize(tasks: Tasks, request: TokenizeRequest) -> Task:
    """The tokens of a text or pair of any length, or their number, in the format of text-embeddings-inference."""
    prompt = "" if request.prompt_name is None else stated_prompt(tasks.manifest, request.prompt_name)
    inputs = request.inputs if isinstance(request.inputs, list) else [request.inputs]
    texts: Texts = [as_text(one, index, wrong=WRONG_PAIR) for index, one in enumerate(inputs)]
    texts = PromptedTexts(prompt, texts) if prompt else texts
    tasks.check_count(texts)
    options = tasks.reading(request, EncodeOptions(outputs=frozenset(), masks=request.mask))
    read = partial(tasks.tokenizer.read, texts, options, add_special_tokens=request.add_special_tokens)

    async def answer(_: TaskResult) -> Any:
        if request.count:
            return await read(len)
        found = await read(partial(describe_tokens, tasks.tokenizer), check=check_answer_size)
        return MadeList(partial(_show, tasks, details=request.details), texts, found)

    return Task(None, answer)


async def decode(tasks: Tasks, request: DecodeRequest) -> Task:
    """The texts of token ids, in the format of text-embeddings-inference."""
    single = bool(request.ids) and isinstance(request.ids[0], int)
    rows = cast(list[list[int]], [request.ids] if single else request.ids)
    tasks.check_count(rows)
    await _check_ids(rows, tasks.manifest.sizes["vocabulary"], tasks.tokenizer.max_characters)

    async def answer(_: TaskResult) -> list[str]:
        return await tasks.tokenizer.decode(rows, skip_special_tokens=request.skip_special_tokens)

    return Task(None, answer)


def check_answer_size(tokens: int) -> None:
    """Raises TooLarge for an answer with so many tokens, or more."""
    if tokens > MAX_TOKENS:
        way_out = "split the request, or send count: true for their number alone"
        raise TooLarge(f"the inputs have {tokens} tokens or more; at most {MAX_TOKENS} are shown: {way_out}")


async def _check_ids(rows: Sequence[Sequence[int]], vocabulary: int, most: int) -> None:
    async for index, ids in in_turns(enumerate(rows)):
        if len(ids) > most:
            message = f"a list of {len(ids)} ids; at most {most} are allowed (BERT_MAX_CHARACTERS): split it"
            raise Invalid(message, code="too_long", index=index)
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            wrong = next(token_id for token_id in ids if not 0 <= token_id < vocabulary)
            message = f"the id {wrong} is not in the vocabulary; this model has 0 to {vocabulary - 1}"
            raise Invalid(message, code="ids", index=index)


def _show(tasks: Tasks, text: Text, tokens: TokenDetails, *, details: bool) -> MadeList:
    """The tokens of an input, as in the response: each is made when it is written, since a text may have 100,000."""
    sides, tokenizer = (text,) if isinstance(text, str) else text, tasks.tokenizer
    unknown = tasks.manifest.special_tokens.get("unk")

    def show(at: int, token_id: int, start: int, stop: int, special: int, word: int, side: int, segment: int) -> Any:
        text = tokens.piece(at, tokenizer) if special else sides[max(0, side)][start:stop]
        first, end = (None, None) if special else (start, stop)
        token = {"id": token_id, "text": text, "special": bool(special), "start": first, "stop": end}
        if details:
            token |= {"piece": tokens.piece(at, tokenizer), "unknown": token_id == unknown}
            token |= {"word": word if word >= 0 else None, "side": side if side >= 0 else None}
            token |= {"segment": segment, "position": at}
        return token

    starts, stops = map(np.ascontiguousarray, tokens.spans.T)
    columns = (tokens.ids, starts, stops, tokens.special, tokens.words, tokens.sides, tokens.types)
    return MadeList(show, range(len(tokens)), *(column.data for column in columns))  # of Python's own integers
