"""The trace that the running request belongs to.

The queue, the log lines and the messages between processes read the context here, whether traces are on or not. Imports
nothing of OpenTelemetry.
"""

from contextvars import ContextVar

SAMPLED = "-01"
# As a `traceparent` of W3C Trace Context, with the id of the request's span; empty without traces.
TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")


def current_trace_id() -> str:
    """32 hexadecimal digits; empty without traces."""
    return TRACEPARENT.get()[3:35]


def current_exemplar() -> dict[str, str] | None:
    """The labels of an exemplar; None where the trace is not sampled: there would be none to find."""
    return {"trace_id": current_trace_id()} if TRACEPARENT.get().endswith(SAMPLED) else None
