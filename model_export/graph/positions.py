"""The positions of the tokens of one sequence."""

import numpy as np

from packbert.model_export.graph.builder import GraphBuilder, Value


def positions_of(g: GraphBuilder, states: Value) -> Value:
    """0 to n - 1, [n] in int64, for `states` [n, hidden]: without a Shape, whose result is in the host's memory."""
    column = g.op("Gather", states, g.constant(np.int64(0)), axis=1)
    one = g.constant(np.int64(1))
    ones = g.op("Where", g.op("Equal", column, column), one, one)
    return g.op("Squeeze", g.op("NonZero", ones), g.constant(np.array([0])))
