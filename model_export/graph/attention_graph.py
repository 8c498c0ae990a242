"""The graph of the attention probabilities, a model of its own, so that the encoder has no node for them.

    hidden.i [tokens, hidden]: the states that layer i reads -> attention.i [heads, tokens, tokens]

It knows one sequence at a time, and shares the encoder's weights: the query and key products are the encoder's own. A
layer that is not asked for gets the states of one token, not of none: ONNX Runtime divides by their number.
"""

from model_export.artifact.feeds.layers import attention_name, hidden_name
from model_export.checkpoints.named_weights import NamedWeights
from model_export.graph.attention import Attention
from model_export.graph.builder import GraphBuilder
from model_export.graph.channel_shift import Shift
from model_export.graph.encoder import read_projections
from model_export.graph.linear import Linear


def build_attention(g: GraphBuilder, parts: NamedWeights, linear: Linear, attention: Attention, shift: Shift) -> None:
    """Inputs in the dtype of `g`, outputs in float32. Weights get the names that the encoder gives them."""
    a, dtype = parts.architecture, g.dtype
    for i in range(a.layers):
        states = g.input(hidden_name(i), dtype, [f"tokens.{i}", a.hidden])
        with g.scope(f"layers.{i}"), g.scope("attention"):
            found = attention.probabilities(linear, read_projections(parts, shift, i), states)
        with g.using_dtype("float32"):
            g.expose(attention_name(i), g.cast(found, dtype), "float32", [a.heads, f"tokens.{i}", f"tokens.{i}"])
