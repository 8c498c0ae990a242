"""/embed with `layers`: the hidden states of chosen layers, for each text, token or word, and how layers are joined.

Concatenation and sums of layers are those of Devlin et al. 2018, table 7 (feature-based approach).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.feeds.layers import LAST
from service.errors import Invalid
from service.tasks.base import MadeList, TaskResult, Tasks, as_list
from service.tasks.schemas import EmbedRequest, LayerPooling
from service.tasks.vectors.embed import check_dimensions, prepend_prompt, stack_vectors
from service.tasks.vectors.token_vectors import check_answer_size, show_tokens
from service.tasks.vectors.windows import asks_for_windows, run_vectors
from service.tokenization.encoding import EncodedText, EncodeOptions
from service.turns import in_turns

OUTPUTS = {"cls": "layer_cls", "mean": "layer_mean", "none": "layer_tokens"}  # by pooling
Floats = NDArray[np.float32]


async def embed_layers(tasks: Tasks, request: EmbedRequest, *, timeout_seconds: float) -> TaskResult:
    """The states of `request.layers`, float32.

    One array for all texts with pooling cls and mean: [texts, layers, hidden], or [texts, width] where layers are
    joined. With pooling none an array for each text: [layers, tokens, hidden], or [tokens, width].
    """
    tasks.require_head("layers")
    pooling = request.pooling or tasks.embedding.pooling
    if pooling not in OUTPUTS:
        message = f"pooling {pooling} reads the last layer alone; with layers, send pooling cls, mean or none"
        raise Invalid(message, code="pooling")
    count, hidden = tasks.manifest.sizes["layers"], tasks.manifest.sizes["hidden"]
    layers = choose_layers(request.layers or [], count)
    _check_weights(request.layer_pooling, len(layers))
    check_dimensions(request, hidden * (len(layers) if request.layer_pooling == "concat" else 1))
    answered = 0

    def check(sequences: Sequence[EncodedText], _: int = 0) -> None:
        nonlocal answered
        answered += sum(map(len, sequences)) if pooling == "none" else len(sequences)
        check_answer_size(answered, hidden * len(layers), of="tokens" if pooling == "none" else "texts")

    texts, prompt = prepend_prompt(tasks, as_list(request.inputs), request)
    spans = pooling == "none" and (request.pieces or request.words)
    asked = tuple(LAST if layer == count else layer for layer in layers)
    options = EncodeOptions(outputs=frozenset({OUTPUTS[pooling]}), layers=asked, spans=spans)
    if asks_for_windows(request, request):
        check_answer_size(len(texts), hidden * len(layers), of="texts")
        result = await run_vectors(tasks, texts, prompt, request, options, timeout_seconds=timeout_seconds)
    else:
        result = await tasks.run(texts, request, options, check=check, timeout_seconds=timeout_seconds)
    rows = [row[OUTPUTS[pooling]] for row in result.rows]

    def join(row: NDArray[np.generic]) -> Floats:
        return join_layers(row.reshape(len(layers), -1, hidden), request.layer_pooling)

    if pooling == "none":
        return result.finish(await show_tokens(tasks, texts, result.sequences, MadeList(join, rows), request))
    joined = [join(row)[..., 0, :] async for row in in_turns(rows)]
    return result.finish(await stack_vectors(joined, request, normalize=tasks.embedding.normalize))


def choose_layers(asked: Sequence[int], count: int) -> list[int]:
    """The numbers of the layers, of `count` layers after the embeddings, whose number is 0; negative ones count back.

    Raises Invalid for none, a layer that the model does not have, or the same one twice.
    """
    if not asked:
        raise Invalid("layers is empty: name at least one, 0 for the embeddings, -1 for the last layer", code="layers")
    for layer in asked:
        if not -count - 1 <= layer <= count:
            known = f"0 (the embeddings) to {count}, or -{count + 1} to -1 counted from the end"
            raise Invalid(f"layers has {layer}; this model has {known}", code="layers")
    layers = [layer % (count + 1) for layer in asked]
    if len(set(layers)) < len(layers):
        twice = next(layer for layer in layers if layers.count(layer) > 1)
        raise Invalid(f"layers has layer {twice} twice: name each layer once", code="layers")
    return layers


def join_layers(states: NDArray[np.generic], how: LayerPooling | None) -> Floats:
    """`states` [layers, tokens, hidden] as [tokens, width]; as they are where `how` is None."""
    if how is None:
        return np.asarray(states, np.float32)
    if how == "concat":
        return np.concatenate(list(states), axis=-1).astype(np.float32, copy=False)
    count = len(states)
    weights = how if isinstance(how, list) else [1.0 if how == "sum" else 1 / count] * count
    return np.tensordot(np.array(weights, np.float64), states.astype(np.float64), axes=1).astype(np.float32)


def _check_weights(how: LayerPooling | None, layers: int) -> None:
    if isinstance(how, list) and len(how) != layers:
        message = f"layer_pooling has {len(how)} weights for {layers} layers: send a weight for each layer"
        raise Invalid(message, code="layer_pooling")
