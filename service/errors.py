"""The errors that clients receive: each has an HTTP status, a stable code, a message that names limit and remedy."""

import math

UNEXPECTED = "something went wrong in the server; its log has the details under this request_id"
SHUTTING_DOWN = "the server is shutting down: send the request to another replica"
LOADING = "the model is loading: try again in a few seconds"
SUSPENDED_RETRY_SECONDS = 5.0


class DeviceError(Exception):
    """The device cannot be used as asked, so the start ends; the message names what is missing."""


class ServiceError(Exception):
    """Why a request has no answer: the route answers with it."""

    status = 500
    code = "internal"
    default_retry_after: float | None = None  # seconds
    queue_seconds: float = 0.0  # that the request waited in the queue before it ended so

    def __init__(
        self, message: str, *, code: str | None = None, index: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.index = index  # of the input that caused the error
        self.retry_after = self.default_retry_after if retry_after is None else retry_after  # seconds

    @property
    def reason(self) -> str:
        """The code of its class, for /metrics: a small fixed set."""
        return type(self).code

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(max(1, math.ceil(self.retry_after)))}


class BadRequest(ServiceError):
    """The body is not JSON, or not UTF-8."""

    status, code = 400, "bad_request"


class Unauthorized(ServiceError):
    status, code = 401, "unauthorized"

    @property
    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class NotFound(ServiceError):
    """Nothing has this name."""

    status, code = 404, "not_found"


class TooLarge(ServiceError):
    """The request as a whole is over a limit: sending it again does not help."""

    status, code = 413, "too_large"


class TooMuchForDeadline(TooLarge):
    """The device cannot compute so much within the deadline, even if nothing else is queued."""

    code = "too_much_for_deadline"


class Unsupported(ServiceError):
    """The body has a content coding that the service does not read."""

    status, code = 415, "unsupported"


class Invalid(ServiceError):
    """The fields are there, but their values cannot be processed."""

    status, code = 422, "invalid"


class Overloaded(ServiceError):
    """Nothing of the request was computed; it may be sent again after `retry_after` seconds."""

    status, code = 429, "overloaded"


class BuffersFull(Overloaded):
    """The bodies of other requests take all bytes that may be held at a time."""

    code = "buffers_full"


class DeadlineTooShort(Overloaded):
    """The deadline would pass while the request waits; with a longer deadline it would be admitted."""

    code = "deadline_too_short"


class InferenceFailed(ServiceError):
    """The model raised, or its answer was not finite."""

    status, code = 500, "run_failed"


class TokenizerFailed(ServiceError):
    """The tokenizer raised or panicked on a text that it should encode."""

    code = "tokenizer_failed"


class NoSuchHead(ServiceError):
    """This model does not have what the task needs."""

    status, code = 501, "no_such_head"


class Unavailable(ServiceError):
    """Loading, draining, or the deadline passed before the run."""

    status, code = 503, "unavailable"
    default_retry_after: float | None = 0.0  # at another replica, at once: `Retry-After: 1`, which is the least


class NotFinite(InferenceFailed):
    """An answer holds NaN or infinity."""

    code = "not_finite"


class OutOfMemory(InferenceFailed):
    """The memory of a run could not be allocated; a smaller batch may succeed."""

    code = "out_of_memory"


class DeadlineExceeded(Unavailable):
    """The deadline passed while a part of the request was still in the queue; that part never ran."""

    code = "deadline"
    default_retry_after = None


def suspension(reason: str) -> Unavailable:
    """What a request gets while the engine answers none."""
    return Unavailable(reason, code="suspended", retry_after=SUSPENDED_RETRY_SECONDS)
