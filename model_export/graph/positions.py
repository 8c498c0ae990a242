"""The positions of tokens, and the distances between them."""

import numpy as np

from .builder import TYPES, GraphBuilder, Value


def positions_in(g: GraphBuilder, *, selected: bool = False) -> Value:
    """The position of each flat token, or of each selected token; in int32."""
    positions = g.input("positions", "int32", ["tokens"])
    return g.op("Gather", positions, g.input("chosen", "int32", ["chosen"])) if selected else positions


def distances_in(g: GraphBuilder, tokens: Value, *, selected: bool) -> Value:
    """How far behind each query of `tokens` [rows, queries] a key is, [rows, queries, width]; across sequences too.

    `tokens` are the flat tokens of slots; in the last layer, those of slots among the `selected` tokens.
    """
    slot_tokens = g.input("slot_tokens", "int32", ["rows", "width"])
    of_queries = g.op("Gather", positions_in(g, selected=selected), tokens)
    return differences(g, of_queries, g.op("Gather", positions_in(g), slot_tokens))


def differences(g: GraphBuilder, queries: Value, keys: Value) -> Value:
    """keys - queries: from [..., queries] and [..., keys] to [..., queries, keys]."""
    rows = g.op("Unsqueeze", keys, g.int64(-2))
    return g.op("Sub", rows, g.op("Unsqueeze", queries, g.int64(-1)))


def positions_of(g: GraphBuilder, states: Value) -> Value:
    """0 to n - 1, [n] in int32, for `states` [n, hidden]: without a Shape, whose result is in the host's memory."""
    column = g.op("Gather", states, g.constant(np.int64(0)), axis=1)
    one = g.constant(np.int64(1))
    ones = g.op("Where", g.op("Equal", column, column), one, one)
    return g.op("Cast", g.op("Squeeze", g.op("NonZero", ones), g.int64(0)), to=int(TYPES["int32"]))
