"""Vectors of tokens, words and layers."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from packbert.model_export.artifact.batch import LAST

from ..errors import Invalid, TooLarge
from ..tokenization.encoding import EncodedText, EncodeOptions, TokenIds
from ..turns import in_turns
from .embed import (
    asks_for_windows,
    check_dimensions,
    cut_and_scale,
    embed,
    join_windows,
    prepend_prompt,
    read_inputs,
    read_texts,
    stack_vectors,
)
from .flow import Check, Task, TaskResult, Tasks, check_sum
from .inputs import (
    EmbedAllResponse,
    EmbedRequest,
    EmbedResponse,
    LayerPooling,
    TextsWithPrompt,
    Vectors,
    choose_indices,
    merge_parameters,
)
from .max_sim import options_of, own_vectors
from .results import LongObject, MadeList

OUTPUTS = {"cls": "layer_cls", "mean": "layer_mean", "none": "layer_tokens"}  # by pooling
OF_TEXTS = ("pieces", "words", "long", "stride")  # fields that need texts instead of token ids
MAX_LAYER_WEIGHT = 1_000_000  # far from what float32 cannot hold
MAX_NUMBERS = 4_000_000  # in a response: about 45 MB of JSON, 16 MB as NPY
VECTOR = [[[0.1, -0.2]]]
Floats = NDArray[np.float32]


def average_words(states: NDArray[np.generic], words: Sequence[slice]) -> NDArray[np.float32]:
    """The mean of the vectors of each word's tokens: [..., tokens, width] to [..., words, width]."""
    means = [states[..., word, :].mean(axis=-2, dtype=np.float64) for word in words]
    return np.stack(means, axis=-2).astype(np.float32)


async def embed_layers(tasks: Tasks, request: EmbedRequest) -> Task:
    """The states of `request.layers`, float32.

    With pooling cls and mean an array for all texts: [texts, layers, hidden], or [texts, width] if layers are joined.
    With pooling none an array for each text: [layers, tokens, hidden], or [tokens, width].
    """
    tasks.require_head("layers")
    pooling = request.pooling or tasks.embedding.pooling
    if pooling not in OUTPUTS:
        message = f"pooling {pooling} reads the last layer alone; with layers, send pooling cls, mean or none"
        raise Invalid(message, code="pooling")
    count, hidden = tasks.manifest.sizes["layers"], tasks.manifest.sizes["hidden"]
    layers = choose_indices(
        request.layers or (),
        count + 1,
        "layers",
        way_out="0 for the embeddings, -1 for the last layer",
        known=f"0 (the embeddings) to {count}, or -{count + 1} to -1 counted from the end",
        twice="layer {} twice: name each layer once",
    )
    _check_weights(request.layer_pooling, len(layers))
    check_dimensions(request, hidden * (len(layers) if request.layer_pooling == "concat" else 1))
    texts = prepend_prompt(tasks, read_inputs(tasks, request.inputs, request.tokenizer, request), request)
    spans = pooling == "none" and (request.pieces or request.words)
    asked = tuple(LAST if layer == count else layer for layer in layers)
    options = EncodeOptions(outputs=frozenset({OUTPUTS[pooling]}), layers=asked, spans=spans, words=request.words)

    def join(row: NDArray[np.generic]) -> Floats:
        return join_layers(row.reshape(len(layers), -1, hidden), request.layer_pooling)

    if pooling == "none":
        return _of_tokens(tasks, texts, request, options, hidden * len(layers), join)
    width, check = hidden * len(layers), None
    if asks_for_windows(request):
        check_answer_size(len(texts), width, of="texts")
    else:
        check = check_sum(lambda chunk: len(chunk.work), partial(check_answer_size, width=width, of="texts"))
    chunks = await read_texts(tasks, texts, request, options)

    async def answer(result: TaskResult) -> Any:
        rows = await join_windows(result, [row[OUTPUTS[pooling]] for row in result.rows])
        joined = [join(row)[..., 0, :] async for row in in_turns(rows)]
        return await stack_vectors(joined, request, normalize=tasks.embedding.normalize)

    return Task(chunks, answer, check)


def join_layers(states: NDArray[np.generic], how: LayerPooling | None) -> Floats:
    """`states` [layers, tokens, hidden] as [tokens, width]; as they are if `how` is None."""
    if how is None:
        return np.asarray(states, np.float32)
    if how == "concat":
        return np.concatenate(list(states), axis=-1).astype(np.float32, copy=False)
    count = len(states)
    weights = how if isinstance(how, list) else [1.0 if how == "sum" else 1 / count] * count
    return np.tensordot(np.array(weights, np.float64), states.astype(np.float64), axes=1).astype(np.float32)


def _check_weights(how: LayerPooling | None, layers: int) -> None:
    if not isinstance(how, list):
        return
    if len(how) != layers:
        message = f"layer_pooling has {len(how)} weights for {layers} layers: send a weight for each layer"
        raise Invalid(message, code="layer_pooling")
    if wrong := [weight for weight in how if not abs(weight) <= MAX_LAYER_WEIGHT]:
        limits = f"send numbers from -{MAX_LAYER_WEIGHT:,} to {MAX_LAYER_WEIGHT:,}"
        raise Invalid(f"layer_pooling has the weight {wrong[0]:g}: {limits}", code="layer_pooling")


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


async def embed_all(tasks: Tasks, request: EmbedAllRequest) -> Task:
    """A vector per token of each text, the last layer's hidden states, in the format of text-embeddings-inference."""
    return await embed_tokens(tasks, EmbedRequest(**dict(request), pooling="none"))


async def embed_tokens(tasks: Tasks, request: EmbedRequest) -> Task:
    """The vectors of the last layer, in the forms of `_of_tokens`."""
    tasks.require_head("tokens")
    width = tasks.manifest.sizes["hidden"]
    check_dimensions(request, width)
    texts = prepend_prompt(tasks, read_inputs(tasks, request.inputs, request.tokenizer, request), request)
    options = EncodeOptions(outputs=frozenset({"tokens"}), spans=request.pieces or request.words, words=request.words)
    return _of_tokens(tasks, texts, request, options, request.dimensions or width, lambda states: states)


async def embed_multi(tasks: Tasks, request: EmbedRequest) -> Task:
    """For each text its vectors as ColBERT and BGE-M3 make them, [tokens, dimensions], of unit length."""
    tasks.require_head("multi")
    name = request.prompt_name or tasks.manifest.embedding.default_prompt or "document"
    side, width = "query" if name == "query" else "document", int(tasks.manifest.outputs["multi"].shape[-1])
    check_dimensions(request, width)
    inputs = read_inputs(tasks, request.inputs, request.tokenizer, request)
    if isinstance(inputs, TokenIds):
        message = "pooling multi reads texts, into whose tokens it puts a marker: send the texts instead of token ids"
        raise Invalid(message, code="token_ids")
    texts = prepend_prompt(tasks, inputs, request)
    shape = partial(cut_and_scale, request=request, normalize=request.dimensions is not None)

    async def answer(result: TaskResult) -> MadeList:
        return MadeList(shape, MadeList(partial(own_vectors, tasks, side), result.sequences, result.rows))

    check = _token_check(request.dimensions or width)
    return Task(partial(tasks.chunks, texts, request, options_of(tasks, side)), answer, check)


def _of_tokens(
    tasks: Tasks,
    texts: Sequence[str],
    request: EmbedRequest,
    options: EncodeOptions,
    width: int,
    join: Callable[[NDArray[np.generic]], NDArray[np.generic]],
) -> Task:
    """For each text its vectors, [tokens, dimensions] or [layers, tokens, dimensions]: `join` makes them of its row.

    With `words`, [words, dimensions]. With `pieces`, the pieces or words beside the vectors.
    """
    (output,), shape = options.outputs, partial(cut_and_scale, request=request, normalize=False)

    async def answer(result: TaskResult) -> MadeList:
        states = MadeList(lambda row: join(row[output]), result.rows)
        if request.words:
            return MadeList(show_words, texts, result.sequences, states)
        return MadeList(show_tokens, result.sequences, states) if request.pieces else MadeList(shape, states)

    def show_tokens(tokens: EncodedText, array: NDArray[np.generic]) -> LongObject:
        return LongObject(pieces=show_pieces(tasks, tokens), vectors=shape(array))

    def show_words(text: str, tokens: EncodedText, array: NDArray[np.generic]) -> Any:
        vectors = shape(average_words(array, tokens.words))
        return LongObject(words=_words(tasks, text, tokens), vectors=vectors) if request.pieces else vectors

    return Task(partial(tasks.chunks, texts, request, options), answer, _token_check(width))


def _token_check(width: int) -> Check:
    return check_sum(attrgetter("tokens"), partial(check_answer_size, width=width))


def check_answer_size(count: int, width: int, *, of: str = "tokens") -> None:
    """Raises TooLarge if `count` vectors of `width` numbers exceed MAX_NUMBERS; `of`: what each is a vector of."""
    if count * width > MAX_NUMBERS:
        raise TooLarge(
            f"vectors of {width} numbers for each of {count} {of} make a response of {count * width} numbers; "
            f"at most {MAX_NUMBERS} are allowed, {MAX_NUMBERS // width} {of}: split the request or ask for less of each"
        )


def show_pieces(tasks: Tasks, tokens: EncodedText) -> list[dict[str, Any]]:
    """The tokens of a text, as in the response."""
    shown = []
    for token_id, span in zip(tokens.ids.tolist(), tokens.spans.tolist(), strict=True):
        start, stop = (None, None) if (special := span[0] < 0) else span
        text = tasks.tokenizer.piece(token_id)
        shown.append({"id": token_id, "text": text, "special": special, "start": start, "stop": stop})
    return shown


def _words(tasks: Tasks, text: str, tokens: EncodedText) -> list[dict[str, Any]]:
    """The words of a text, as in the response."""
    spans, ids, shown = tokens.spans.tolist(), tokens.ids.tolist(), []
    for word in tokens.words:
        start, stop = spans[word.start][0], spans[word.stop - 1][1]
        pieces = [tasks.tokenizer.piece(token_id) for token_id in ids[word]]
        shown.append({"text": text[start:stop], "start": start, "stop": stop, "pieces": pieces})
    return shown


VectorsOfLayers = Annotated[list[list[Vectors]], Field(description="with layers: for each input and layer")]
VectorsResponse = EmbedResponse | EmbedAllResponse | VectorsOfLayers | list[PiecesAndVectors] | list[WordsAndVectors]


def embed_any(tasks: Tasks, request: EmbedRequest) -> Awaitable[Task]:
    """One vector per text, always as a list of lists, by default as the checkpoint says, else the state of [CLS]; or
    with pooling none one per token. Raises Invalid for fields that have no meaning together."""
    request = request if request.parameters is None else merge_parameters(request)
    if (request.pieces or request.words) and request.pooling != "none":
        name = "pieces" if request.pieces else "words"
        raise Invalid(f'{name} are shown beside vectors of tokens: send "pooling": "none" too', code=name)
    pooling = request.pooling or tasks.embedding.pooling
    if pooling in ("none", "multi") and asks_for_windows(request):
        message = f"windows make one vector of a text, and pooling {pooling} gives one for each token"
        raise Invalid(f"{message}: send another pooling", code="pooling")
    if request.tokenizer is not None and (asked := [name for name in OF_TEXTS if getattr(request, name)]):
        message = f"{', '.join(asked)} need the texts, and tokenizer is for token ids: send one of them"
        raise Invalid(message, code="token_ids")
    if request.layers is not None:
        return embed_layers(tasks, request)
    if request.layer_pooling is not None:
        raise Invalid("layer_pooling joins layers: send layers too", code="layer_pooling")
    read = {"none": embed_tokens, "multi": embed_multi}.get(pooling, embed)
    return read(tasks, request)
