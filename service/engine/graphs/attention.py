"""The attention probabilities of single sequences, from the hidden states that the encoder gave.

Its weights are the encoder's, which the service does not have any more in this form, so they are read again, and
checked: their file may have changed since the start. Knows states and sessions; knows nothing of threads or requests.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.batch import Row, Tokens
from model_export.artifact.feeds.layers import ATTENTION_OUTPUTS, attention_name, hidden_name
from model_export.artifact.manifest import ATTENTION, sha256
from model_export.artifact.stored_weights import digest, read_weights
from service.engine.graphs.further_graph import FurtherGraph, files_changed
from service.engine.session import Session, open_session_sharing

PURPOSE = "/attention"
Floats = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class AttentionModel(FurtherGraph):
    def fill_row(self, tokens: Tokens, row: Row) -> Row:
        """The row of a sequence, with the probabilities in the place of the states that `split` gave it.

        `attention` are those of each layer and head, [layers, heads, tokens, tokens], and `attention_mean` the mean of
        the heads, both as one dimension. Raises InferenceFailed where the files of the artifact have changed.
        """
        asked = sorted(ATTENTION_OUTPUTS & tokens.outputs)
        if not asked:
            return row
        probabilities = self._run(row[asked[0]], tokens.layers)
        values = {"attention": probabilities, "attention_mean": probabilities.mean(axis=1, dtype=np.float64)}
        return row | {name: values[name].astype(np.float32, copy=False).reshape(-1) for name in asked}

    def _run(self, states: NDArray[np.generic], layers: tuple[int, ...]) -> Floats:
        """[layers, tokens, hidden] -> [layers, heads, tokens, tokens]. One sequence alone, whatever the batch had."""
        feeds = {hidden_name(i): states[0, :1] for i in range(self.artifact.manifest.sizes["layers"])}
        feeds |= {hidden_name(layer): one for layer, one in zip(layers, states, strict=True)}
        return np.stack(self.open().run([attention_name(layer) for layer in layers], feeds)).astype(np.float32)

    def _read(self) -> Session:
        artifact, stored = self.artifact, self.artifact.manifest.attention
        try:
            weights = read_weights(artifact.weights, stored.stored, mapped=self.share_weights)
            unchanged = sha256(artifact.attention) == artifact.manifest.files[ATTENTION]
        except (OSError, ValueError) as error:
            raise files_changed(PURPOSE, error) from error
        if not (unchanged and digest(weights.values()) == stored.sha256):
            raise files_changed(PURPOSE)
        return open_session_sharing(artifact.attention, weights, artifact.manifest)
