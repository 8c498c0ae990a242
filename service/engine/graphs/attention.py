"""The attention probabilities of single sequences, from the hidden states that the encoder gave.

The graph is opened when a request first asks for it: without one it takes no memory and no time. Its weights are the
encoder's, which the service does not have any more in this form, so they are read again, and checked: their file may
have changed since the start. Knows states and sessions; knows nothing of threads or requests.
"""

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.batch import Row, Tokens
from model_export.artifact.feeds.layers import ATTENTION_OUTPUTS, attention_name, hidden_name
from model_export.artifact.manifest import ATTENTION, sha256
from model_export.artifact.stored_weights import digest, read_weights
from service.artifact import Artifact
from service.engine.session import Session, open_session_sharing
from service.errors import InferenceFailed

CHANGED = (
    "the artifact's files have changed since the service started, so it cannot read them for /attention: restart it"
)
Floats = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class AttentionModel:
    artifact: Artifact
    share_weights: bool = False  # map the weights instead of a copy in this process's memory (BERT_SHARE_WEIGHTS)
    _session: Session | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock, repr=False)

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
        return np.stack(self._open().run([attention_name(layer) for layer in layers], feeds)).astype(np.float32)

    def _open(self) -> Session:
        with self._opening:
            if self._session is None:
                self._session = self._read()
        return self._session

    def _read(self) -> Session:
        """Raises InferenceFailed where a file is not the one of the manifest."""
        artifact, stored = self.artifact, self.artifact.manifest.attention
        try:
            weights = read_weights(artifact.weights, stored.stored, mapped=self.share_weights)
            unchanged = sha256(artifact.attention) == artifact.manifest.files[ATTENTION]
        except (OSError, ValueError) as error:
            raise InferenceFailed(f"{CHANGED} ({error})") from error
        if not (unchanged and digest(weights.values()) == stored.sha256):
            raise InferenceFailed(CHANGED)
        return open_session_sharing(artifact.attention, weights, device=artifact.manifest.device)
