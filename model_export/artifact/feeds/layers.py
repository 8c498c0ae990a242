"""The outputs that read hidden states of any layer: which graph outputs they read, and their rows. NumPy alone.

The graph gives the states of all tokens of a batch, and of the last layer those of the selected tokens. It computes
these values in any run: as outputs they add no node to it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

LAST = -1  # the last layer, in Tokens.layers; 0 is the output of the embeddings
OFFSETS = "hidden_offsets"  # graph output [layers + 1, hidden]: what int8's channel shift took from each state
ATTENTION_OUTPUTS = frozenset({"attention", "attention_mean"})  # by head; the mean of all heads
LAYER_OUTPUTS = frozenset({"layer_cls", "layer_mean", "layer_tokens"}) | ATTENTION_OUTPUTS
Arrays = Mapping[str, NDArray[np.generic]]
Floats = NDArray[np.float32]


def hidden_name(layer: int) -> str:
    """The graph output with the hidden states of `layer`."""
    return "hidden.last" if layer == LAST else f"hidden.{layer}"


def attention_name(layer: int) -> str:
    """The output of the graph of the attention with the probabilities of `layer`, counted from 0."""
    return f"attention.{layer}"


def graph_outputs(layers: tuple[int, ...]) -> frozenset[str]:
    """The graph outputs that a sequence with one of LAYER_OUTPUTS reads."""
    return frozenset({OFFSETS, *map(hidden_name, layers)})


def layer_rows(name: str, layers: tuple[int, ...], outputs: Arrays, own: slice, selected: slice) -> NDArray[np.generic]:
    """The output `name` of one sequence, layer after layer: a row for each layer, or for each token of each layer.

    `own` are its tokens in the batch, and `selected` those of them that the last layer computed; the first is [CLS].
    For ATTENTION_OUTPUTS the states that the attention of each layer reads, as the graph has them, in its dtype:
    [layers, tokens, hidden].
    """
    if name in ATTENTION_OUTPUTS:
        return np.stack([outputs[hidden_name(layer)][own] for layer in layers])
    rows = []
    for layer in layers:
        states = outputs[hidden_name(layer)][selected if layer == LAST else own]
        states = states.astype(np.float32, copy=False) + outputs[OFFSETS][layer]
        if name == "layer_cls":
            states = states[:1]
        elif name == "layer_mean":  # the sum does not depend on the neighbours, since it is over the first axis
            states = states.mean(axis=0, dtype=np.float64, keepdims=True).astype(np.float32)
        rows.append(states)
    return np.concatenate(rows)
