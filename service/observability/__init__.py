"""The Prometheus metrics, and the traces: what is counted and recorded, and how it is written."""

from packbert.service.observability.metrics import Metrics, aggregate
from packbert.service.observability.scrape import CONTENT_TYPE, OPENMETRICS, DeviceMemory, register_state, render
from packbert.service.observability.series import MISDIRECTED, PROCESS, REASONS, RECEIVE, TASKS, UNKNOWN

__all__ = [
    "CONTENT_TYPE",
    "MISDIRECTED",
    "OPENMETRICS",
    "PROCESS",
    "REASONS",
    "RECEIVE",
    "TASKS",
    "UNKNOWN",
    "DeviceMemory",
    "Metrics",
    "aggregate",
    "register_state",
    "render",
]
