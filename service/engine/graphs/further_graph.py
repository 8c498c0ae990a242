"""A graph of the artifact that is opened when a request first asks for it: before, it takes no memory and no time."""

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from service.artifact import Artifact
from service.engine.session import Session
from service.errors import InferenceFailed


@dataclass(slots=True, eq=False)
class FurtherGraph(ABC):
    """Knows when it is opened; does not know what it computes."""

    artifact: Artifact
    share_weights: bool = False  # map the weights instead of a copy in this process's memory (BERT_SHARE_WEIGHTS)
    _session: Session | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def open(self) -> Session:
        """The session, opened by the first call. Raises InferenceFailed where a file is not the one of the manifest."""
        with self._opening:
            if self._session is None:
                self._session = self._read()
        return self._session

    @abstractmethod
    def _read(self) -> Session:
        """Opens the graph over the weights in their file, which may have changed since the start."""


def files_changed(purpose: str, detail: object = "") -> InferenceFailed:
    """The error of a request for `purpose` whose files are not those that the service was started with."""
    message = f"the artifact's files have changed since the service started, so it cannot read them for {purpose}"
    return InferenceFailed(f"{message}: restart it" + (f" ({detail})" if detail else ""))
