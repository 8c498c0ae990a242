"""/attention: how much each token of a text or pair attends to each other, by layer and head."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from packbert.model_export.artifact.batch import Row

from ..errors import Invalid, TooLarge
from ..tokenization.chunks import Chunks, TextChunk
from ..tokenization.encoding import EncodedText, EncodeOptions, no_tokens
from ..turns import DEADLINE
from .flow import Task, TaskResult, Tasks
from .inputs import MAX_ATTENTION, FailFastList, ModelField, Pair, SpecialTokensField, as_text, choose_indices
from .results import LongObject
from .vectors import Piece, show_pieces

MAX_NUMBERS = 24 * 16 * 128**2  # BERT-large's for 128 tokens: about 80 MB of JSON, 25 MB as NPY
OPERATIONS_PER_NUMBER = 4000  # made and written: 84 ns, in which the bundled model does so many (AMD Zen 3, fp32)

Matrix = list[list[float]]


class AttentionRequest(ModelField, SpecialTokensField):
    inputs: str | Pair = Field(examples=["my dog is hairy"], description='a text, or a pair {"text", "text_pair"}')
    layers: FailFastList[int] | None = Field(
        None, description="from 0, the first one; negative: from the end; null: all", examples=[[0, -1]]
    )
    heads: FailFastList[int] | None = Field(None, description="of each layer, as layers; null: all")
    reduce: Literal["mean", "rollout"] | None = Field(
        None,
        description="mean: of the heads; rollout: attention rollout (Abnar & Zuidema 2020) from the first layer to the "
        "highest of layers, of the mean of the heads",
    )


class AttentionPiece(Piece):
    start: int | None = Field(description="first character in its text; null: special token", examples=[0])
    side: int | None = Field(description="0 or 1, its text in a pair; null: special token", examples=[0])
    segment: int = Field(description="the segment that the model gets")


class AttentionResponse(BaseModel):
    pieces: list[AttentionPiece]
    layers: list[int] = Field(description="from 0, in the order asked for; with rollout: all that it joins")
    heads: list[int] = Field(description="from 0, in the order asked for; with reduce: those in the mean")
    attention: list[list[Matrix]] | list[Matrix] | Matrix = Field(
        description="[layer][head][query][key], with mean [layer][query][key], with rollout [query][key]; "
        "each row of keys adds up to 1"
    )


async def attention(tasks: Tasks, request: AttentionRequest) -> Task:
    """How much each token of a text or pair attends to each other, by layer and head. The pieces, and a float32 array
    [layers, heads, tokens, tokens], or less with `reduce`."""
    sizes = tasks.manifest.sizes
    layers = _choose(request.layers, sizes["layers"], "layers")
    heads = _choose(request.heads, sizes["heads"], "heads")
    if request.reduce == "rollout":
        layers = list(range(max(layers) + 1))
    averaged = request.reduce is not None and request.heads is None  # by the engine
    each = len(layers) * (1 if averaged else sizes["heads"])
    output = "attention_mean" if averaged else "attention"
    options = EncodeOptions(outputs=frozenset({output}), layers=tuple(layers), spans=True)
    options = tasks.reading(request, options)
    # a text that is too long is refused by its tokens, however many they are
    (tokens,) = await tasks.tokenizer.encode([as_text(request.inputs, 0)], options, "right")
    if tokens.empty:
        raise no_tokens("input", 0)
    check_size(tokens, each)

    cost, rows = expected_cost(len(tokens), each * len(tokens) ** 2, sizes), list[Row]()

    async def chunks() -> Chunks:
        """The text, which counts as `cost` tokens, when no other request of /attention runs."""
        yield TextChunk([], left=cost)
        await DEADLINE.get().wait_for(tasks.alone.acquire(), "while other requests of /attention ran")
        try:
            rows.extend((yield TextChunk([tokens], [0], left=cost - len(tokens), needs_rows=True)) or ())
        finally:
            tasks.alone.release()

    async def answer(result: TaskResult) -> LongObject:
        result.compared = ()
        shape = (len(layers), *(() if averaged else (sizes["heads"],)), len(tokens), len(tokens))
        array = rows[0][output].reshape(shape)
        if not averaged and request.heads is not None:
            array = array[:, heads]
        if request.reduce is not None and not averaged:
            array = array.mean(axis=1, dtype=np.float64)
        if request.reduce == "rollout":
            array = rollout(array)
        found, pieces = np.ascontiguousarray(array, np.float32), _describe(tasks, tokens)
        return LongObject(pieces=pieces, layers=layers, heads=heads, attention=found)

    return Task(chunks, answer)


def expected_cost(tokens: int, numbers: int, sizes: Mapping[str, int]) -> int:
    """The tokens that take as long as an answer of so many numbers, and the run of its own tokens."""
    operations = 24 * sizes["layers"] * sizes["hidden"] ** 2  # of a token: four products of h x h, two of h x 4h
    return tokens + -(-numbers * OPERATIONS_PER_NUMBER // operations)


def check_size(tokens: EncodedText, each: int) -> None:
    """Raises Invalid for too many tokens, TooLarge if `each` numbers for each pair of them are too many.

    A cut text has more tokens than the model takes.
    """
    count = len(tokens)
    if tokens.truncated or count > MAX_ATTENTION:
        more = "more than " if tokens.truncated else ""
        message = f"input has {more}{count} tokens; /attention takes at most {MAX_ATTENTION}: shorten it"
        raise Invalid(message, code="too_long", index=0)
    if (numbers := each * count**2) > MAX_NUMBERS:
        way_out = 'ask for fewer layers, for "reduce" without heads, or send a shorter text'
        raise TooLarge(
            f"attention of {count} tokens has {numbers} numbers; at most {MAX_NUMBERS} are allowed: {way_out}"
        )


def rollout(attention: NDArray[np.generic]) -> NDArray[np.float64]:
    """Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers": [layers, n, n] -> [n, n].

    A layer's matrix with its residual is 0.5 A + 0.5 I with rows that add up to 1; the rollout is the product of the
    layers' matrices, the highest layer first.
    """
    residual = 0.5 * attention.astype(np.float64) + 0.5 * np.eye(attention.shape[-1])
    residual /= residual.sum(axis=-1, keepdims=True)
    joint = residual[0]
    for layer in residual[1:]:
        joint = layer @ joint
    return np.asarray(joint)


def _choose(asked: Sequence[int] | None, count: int, name: str) -> list[int]:
    """The indices asked for, from 0; all by default. Raises as `choose_indices`."""
    if asked is None:
        return list(range(count))
    way_out, known = f"or leave it out for all {count}", f"0 to {count - 1}, or -{count} to -1"
    twice = "{} more than once: name it once"
    return choose_indices(asked, count, name, way_out=way_out, known=known, twice=twice)


def _describe(tasks: Tasks, tokens: EncodedText) -> list[dict[str, Any]]:
    """The pieces with their side: 0 before the special tokens in the middle of a pair, 1 after them."""
    special = tokens.spans[:, 0] < 0
    begins = np.flatnonzero(special & ~np.append(False, special[:-1]))
    sides = np.searchsorted(begins, np.arange(len(special)), side="right") - 1
    shown = zip(show_pieces(tasks, tokens), special, sides.tolist(), tokens.types.tolist(), strict=True)
    return [piece | {"side": None if alone else side, "segment": segment} for piece, alone, side, segment in shown]
