"""The Prometheus metrics: what is counted, and how it is written for a scrape. Decides nothing."""

from service.metrics.collectors import DeviceMemory, render_state
from service.metrics.metrics import CONTENT_TYPE, Metrics, aggregate
from service.metrics.names import MISDIRECTED, REASONS, TASKS, UNKNOWN
from service.metrics.tally import PROCESS, RECEIVE

__all__ = [
    "CONTENT_TYPE",
    "MISDIRECTED",
    "PROCESS",
    "REASONS",
    "RECEIVE",
    "TASKS",
    "UNKNOWN",
    "DeviceMemory",
    "Metrics",
    "aggregate",
    "render_state",
]
