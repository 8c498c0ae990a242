"""Mixes the weights of two models of one shape.

A short run that continues finished weights loses some of what they knew; a mixture of both loses less than its share.
"""

from typing import Any

Weights = dict[str, Any]  # arrays or tensors by parameter name


def mix(first: Weights, second: Weights, *, share: float) -> Weights:
    """(1 - share) * first + share * second; raises ValueError if the parameters or the share do not fit."""
    if first.keys() != second.keys():
        raise ValueError(f"only one of the two models has {sorted(first.keys() ^ second.keys())[:5]}")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"the share of the second model is {share}; allowed are 0 to 1")
    return {name: first[name] * (1.0 - share) + second[name] * share for name in first}
