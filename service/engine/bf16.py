"""A session in bf16: OpenVINO computes the hidden states, and a second session the heads, in fp32.

So whatever reads a hidden state (pooling, masked words, sparse vectors, labels) is computed as in fp32, and only for
what a batch asks for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.openvino import STATES, OpenVinoEncoder

Arrays = Mapping[str, NDArray[np.generic]]


class Heads(Protocol):
    """The session of the graph HEADS of the manifest."""

    inputs: tuple[str, ...]

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]: ...


class Bf16Session:
    provider = "OpenVINO"
    prepacked_for = ""

    def __init__(self, layers: Path, heads: Heads, *, all_layers: bool, threads: int, streams: int) -> None:
        """`streams` threads may call `run` at the same time, each on `threads` cores. `layers` is the graph LAYERS."""
        self._encoder = OpenVinoEncoder(layers, all_layers=all_layers, threads=threads, streams=streams)
        self._heads = heads
        self.inputs = tuple({*self._encoder.inputs, *heads.inputs} - {STATES})

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
        """As `Session.run`."""
        return self._encoder.run_with_heads(self._heads, names, feeds)
