"""/embed_all, and /embed with `pooling: "none"`: a vector for each token or word."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from service.errors import TooLarge
from service.tasks.base import LongObject, MadeList, TaskResult, Tasks, as_list
from service.tasks.schemas import EmbedRequest, TextsWithPrompt, Vectors
from service.tasks.vectors.embed import check_dimensions, cut_and_scale, prepend_prompt
from service.tasks.vectors.words import average_words, find_words
from service.tokenization.encoding import EncodedText, EncodeOptions
from service.tokenization.token_details import TokenDetails, describe_tokens

OPTIONS = EncodeOptions(outputs=frozenset({"tokens"}))
OPTIONS_WITH_SPANS = EncodeOptions(outputs=frozenset({"tokens"}), spans=True)
VECTOR = [[[0.1, -0.2]]]
MAX_NUMBERS = 4_000_000  # in a response: about 45 MB of JSON, 16 MB as NPY


class EmbedAllRequest(TextsWithPrompt):
    """text-embeddings-inference's request."""


class Piece(BaseModel):
    """A token whose vector is at the same place in `vectors`."""

    id: int = Field(examples=[2026])
    text: str = Field(description="as the vocabulary spells it", examples=["my"])
    special: bool
    start: int | None = Field(description="first character in prompt and text; null: special token", examples=[0])
    stop: int | None = Field(description="one past the last character", examples=[2])


class Word(BaseModel):
    text: str = Field(examples=["my"])
    start: int = Field(description="first character in prompt and text", examples=[0])
    stop: int = Field(description="one past the last character", examples=[2])
    pieces: list[str] = Field(examples=[["my"]])


class WordsAndVectors(BaseModel):
    words: list[Word]
    vectors: Vectors | list[Vectors] = Field(description="of each word; with layers, for each layer", examples=VECTOR)


class PiecesAndVectors(BaseModel):
    pieces: list[Piece]
    vectors: Vectors | list[Vectors] = Field(description="of each piece; with layers, for each layer", examples=VECTOR)


async def embed_all(tasks: Tasks, request: EmbedAllRequest, *, timeout_seconds: float) -> TaskResult:
    """As /embed with `pooling: "none"`."""
    return await embed_tokens(tasks, EmbedRequest(**dict(request), pooling="none"), timeout_seconds=timeout_seconds)


async def embed_tokens(tasks: Tasks, request: EmbedRequest, *, timeout_seconds: float) -> TaskResult:
    """As `show_tokens`, of the last layer."""
    tasks.require_head("tokens")
    width = tasks.manifest.sizes["hidden"]
    check_dimensions(request, width)
    tokens, shown = 0, request.dimensions or width

    def check(sequences: Sequence[EncodedText], _: int = 0) -> None:
        nonlocal tokens
        tokens += sum(map(len, sequences))
        check_answer_size(tokens, shown)

    texts, _ = prepend_prompt(tasks, as_list(request.inputs), request)
    options = OPTIONS_WITH_SPANS if request.pieces or request.words else OPTIONS
    result = await tasks.run(texts, request, options, check=check, timeout_seconds=timeout_seconds)
    states = [row["tokens"] for row in result.rows]
    return result.finish(await show_tokens(tasks, texts, result.sequences, states, request))


async def show_tokens(
    tasks: Tasks, texts: Sequence[str], sequences: Sequence[EncodedText], states: Sequence[Any], request: EmbedRequest
) -> Sequence[Any]:
    """For each text its vectors, [tokens, dimensions] or [layers, tokens, dimensions], of states of that shape.

    With `words`, [words, dimensions]. With `pieces`, the pieces or words beside the vectors.
    """
    shape = partial(cut_and_scale, request=request, normalize=False)
    if not request.words:
        if not request.pieces:
            return MadeList(shape, states)
        return MadeList(
            lambda tokens, array: LongObject(pieces=show_pieces(tasks, tokens), vectors=shape(array)), sequences, states
        )
    details = await describe_tokens(tasks.tokenizer, texts, special_tokens=False, masks=False, queued=True)

    def show(text: str, tokens: EncodedText, own: TokenDetails, array: NDArray[np.generic]) -> Any:
        words = find_words(tokens, own)
        vectors = shape(average_words(array, words))
        return LongObject(words=_words(tasks, text, tokens, words), vectors=vectors) if request.pieces else vectors

    return MadeList(show, texts, sequences, details, states)


def check_answer_size(count: int, width: int, *, of: str = "tokens") -> None:
    """Raises TooLarge if `count` vectors of `width` numbers exceed MAX_NUMBERS; `of`: what each is a vector of."""
    if count * width > MAX_NUMBERS:
        raise TooLarge(
            f"vectors of {width} numbers for each of {count} {of} make a response of {count * width} numbers; "
            f"at most {MAX_NUMBERS} are allowed, {MAX_NUMBERS // width} {of}: split the request or ask for less of each"
        )


def show_pieces(tasks: Tasks, tokens: EncodedText) -> list[dict[str, Any]]:
    """The tokens of one text, as in the response."""
    shown = []
    for token_id, (start, stop) in zip(tokens.ids.tolist(), tokens.spans.tolist(), strict=True):
        special = start < 0
        place = {"start": None, "stop": None} if special else {"start": start, "stop": stop}
        shown.append({"id": token_id, "text": tasks.tokenizer.piece(token_id), "special": special} | place)
    return shown


def _words(tasks: Tasks, text: str, tokens: EncodedText, words: Sequence[slice]) -> list[dict[str, Any]]:
    """The words of one text, as in the response."""
    spans, ids, shown = tokens.spans.tolist(), tokens.ids.tolist(), []
    for word in words:
        start, stop = spans[word.start][0], spans[word.stop - 1][1]
        pieces = [tasks.tokenizer.piece(token_id) for token_id in ids[word]]
        shown.append({"text": text[start:stop], "start": start, "stop": stop, "pieces": pieces})
    return shown
