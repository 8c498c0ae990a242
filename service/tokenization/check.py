"""Turns a failure of the tokenizers library into an error of the request."""

import logging
from collections.abc import Callable
from typing import TypeVar

from packbert.service.errors import ServiceError, TokenizerFailed

T = TypeVar("T")
PANIC = "PanicException"  # of the tokenizers library: a BaseException, whose class cannot be imported
log = logging.getLogger("service")


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
