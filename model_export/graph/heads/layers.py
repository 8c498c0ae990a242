"""The hidden states of all layers as outputs of the graph. They are values that it has anyway: no node is added."""

from collections.abc import Sequence

import numpy as np

from model_export.artifact.feeds.layers import LAST, OFFSETS, hidden_name
from model_export.checkpoints.lazy_weight import LazyWeight
from model_export.graph.builder import GraphBuilder, Value
from model_export.graph.channel_shift import Shift


def expose_layers(g: GraphBuilder, states: Sequence[Value], shift: Shift, hidden: int) -> None:
    """`states`: after the embeddings and each layer, [tokens, hidden]; the last ones [selected, hidden]."""
    last = len(states) - 1
    for layer, value in enumerate(states):
        rows = "chosen" if layer == last else "tokens"
        g.expose(hidden_name(LAST if layer == last else layer), value, g.dtype, [rows, hidden])
    taken = [shift.taken(2 * layer, hidden) for layer in range(last + 1)]
    offsets = LazyWeight((last + 1, hidden), lambda: np.stack([one.load() for one in taken]))
    with g.using_dtype("float32"):
        g.expose(OFFSETS, g.weight(OFFSETS, offsets), "float32", [last + 1, hidden])
