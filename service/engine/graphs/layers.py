"""The model with the hidden states between its layers as outputs: a batch that asks for any of them runs here.

Its other answers are those of the model, bit for bit: the same nodes over the same weights, packed in the same way.
Packed weights are memory of a session, so this is a copy of them. Knows sessions; knows nothing of batches or requests.
"""

from dataclasses import dataclass

from model_export.artifact.manifest import sha256
from service.engine.graphs.further_graph import FurtherGraph, files_changed
from service.engine.session import Session, open_session
from service.mapped_file import detach_from

PURPOSE = "the hidden states of layers"


@dataclass(slots=True, eq=False, kw_only=True)
class LayersModel(FurtherGraph):
    threads: int  # of a run

    def _read(self) -> Session:
        artifact = self.artifact
        try:
            known, read = artifact.manifest.files, (artifact.layers, artifact.weights)
            if any(sha256(path) != known[path.name] for path in read):
                raise files_changed(PURPOSE)
        except OSError as error:
            raise files_changed(PURPOSE, error) from error
        session = open_session(artifact.layers, device=artifact.manifest.device, threads=self.threads)
        if not self.share_weights:
            detach_from(artifact.weights)
        return session
