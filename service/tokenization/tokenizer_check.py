"""A tokenizer that fails: checked at start, beside other work, and answered with an error in a request.

`python -m` runs the check's child process.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from model_export.artifact.tokenizer_check import TokenizerCheck, check_in_child
from service.artifact import Artifact, ManifestError
from service.errors import ServiceError, TokenizerFailed

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # the supervisor, which starts the check, does not load it

T = TypeVar("T")
MODULE = __name__
PANIC = "PanicException"  # of the tokenizers library: a BaseException, whose class cannot be imported
log = logging.getLogger("service")


class StartedCheck:
    """A check of the artifact's tokenizer that is under way."""

    def __init__(self, artifact: Artifact) -> None:
        self._path = artifact.tokenizer
        self._check = TokenizerCheck(MODULE, artifact.tokenizer, artifact.manifest.bounds)

    def finish(self) -> None:
        """Waits for the check. Raises ManifestError where the tokenizer cannot serve the model."""
        if fault := self._check.fault():
            raise ManifestError(f"{self._path} cannot be used: it {fault}; export the checkpoint again")


def guard(work: Callable[[], T], index: int | None = None) -> T:
    """The result of `work`. Raises TokenizerFailed where the tokenizers library raises or panics on the text `index`.

    A panic is no Exception: it would pass the endpoint and leave the request without the standard error body.
    """
    try:
        return work()
    except ServiceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        reason = f"{type(error).__name__}: {error}"[:200]
        log.error("the tokenizer failed: %s", reason)
        raise TokenizerFailed(f"the tokenizer failed on this input ({reason}): change it", index=index) from error


def load(path: str) -> "Tokenizer":
    """The tokenizer as `tokenization/tokenizer` opens it: special tokens in a text are text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return tokenizer


if __name__ == "__main__":
    check_in_child(load)
