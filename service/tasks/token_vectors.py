"""/embed_all, and /embed with `pooling: "none"`: a vector for each token, the last layer's hidden state."""

from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from service.errors import Invalid, TooLarge
from service.tasks.base import LongList, TaskResult, Tasks, as_list
from service.tasks.embed import check_dimensions, embed, prepend_prompt, unit_length
from service.tasks.parameters import merge_parameters
from service.tasks.schemas import EmbedRequest, TextsWithPrompt
from service.tasks.windows import asks_for_windows
from service.tokenization.encoding import EncodedText, EncodeOptions

OPTIONS = EncodeOptions(outputs=frozenset({"tokens"}))
OPTIONS_WITH_PIECES = EncodeOptions(outputs=frozenset({"tokens"}), spans=True)
MAX_NUMBERS = 6_000_000  # in a response: about 65 MB of JSON, 24 MB as NPY


class EmbedAllRequest(TextsWithPrompt):
    """text-embeddings-inference's request."""


class Piece(BaseModel):
    """A token whose vector is at the same place in `vectors`."""

    id: int = Field(examples=[2026])
    text: str = Field(description="as the vocabulary spells it", examples=["my"])
    special: bool
    start: int | None = Field(description="first character in prompt and text; null: special token", examples=[0])
    stop: int | None = Field(description="one past the last character", examples=[2])


class PiecesAndVectors(BaseModel):
    pieces: list[Piece]
    vectors: list[list[float]] = Field(description="a vector for each piece", examples=[[[0.1, -0.2]]])


def embed_texts_or_tokens(
    tasks: Tasks, request: EmbedRequest, *, timeout_seconds: float
) -> Coroutine[Any, Any, TaskResult]:
    """/embed: a vector for each text, or with `pooling: "none"` for each token."""
    if request.parameters is not None:
        request = merge_parameters(request)
    return (embed_tokens if request.pooling == "none" else embed)(tasks, request, timeout_seconds=timeout_seconds)


async def embed_all(tasks: Tasks, request: EmbedAllRequest, *, timeout_seconds: float) -> TaskResult:
    """As /embed with `pooling: "none"`."""
    return await embed_tokens(tasks, EmbedRequest(**dict(request), pooling="none"), timeout_seconds=timeout_seconds)


async def embed_tokens(tasks: Tasks, request: EmbedRequest, *, timeout_seconds: float) -> TaskResult:
    """A float32 array [tokens, dimensions] for each text; with `pieces`, its pieces beside them."""
    tasks.require_head("tokens")
    if asks_for_windows(request, request):
        message = "windows make one vector of a text, and pooling none gives one for each token: send another pooling"
        raise Invalid(message, code="pooling")
    width = tasks.manifest.sizes["hidden"]
    check_dimensions(request, width)
    tokens, shown = 0, request.dimensions or width

    def check(sequences: Sequence[EncodedText], _: int = 0) -> None:
        nonlocal tokens
        tokens += sum(map(len, sequences))
        check_answer_size(tokens, shown)

    texts, _ = prepend_prompt(tasks, as_list(request.inputs), request)
    options = OPTIONS_WITH_PIECES if request.pieces else OPTIONS
    result = await tasks.run(texts, request, options, check=check, timeout_seconds=timeout_seconds)
    vectors = LongList(_shape(row["tokens"], request) for row in result.rows)
    if request.pieces:
        pairs = zip(result.sequences, vectors, strict=True)
        return result.finish(LongList({"pieces": _pieces(tasks, one), "vectors": array} for one, array in pairs))
    return result.finish(vectors)


def check_answer_size(tokens: int, width: int) -> None:
    """Raises TooLarge if so many vectors of `width` numbers exceed MAX_NUMBERS."""
    if tokens * width > MAX_NUMBERS:
        raise TooLarge(
            f"vectors of {width} numbers for each of {tokens} tokens make a response of {tokens * width} numbers; "
            f"at most {MAX_NUMBERS} are allowed, {MAX_NUMBERS // width} tokens: split the request or lower dimensions"
        )


def _shape(vectors: NDArray[np.generic], request: EmbedRequest) -> NDArray[np.generic]:
    own = vectors[:, : request.dimensions]
    return unit_length(own) if request.normalize else np.ascontiguousarray(own)


def _pieces(tasks: Tasks, tokens: EncodedText) -> list[dict[str, Any]]:
    """The tokens of one text, as in the response."""
    shown = []
    for token_id, (start, stop) in zip(tokens.ids.tolist(), tokens.spans.tolist(), strict=True):
        special = start < 0
        place = {"start": None, "stop": None} if special else {"start": start, "stop": stop}
        shown.append({"id": token_id, "text": tasks.tokenizer.piece(token_id), "special": special} | place)
    return shown
