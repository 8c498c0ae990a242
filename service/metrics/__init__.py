"""The Prometheus metrics: what is counted, and how it is written for a scrape. Decides nothing."""

from service.metrics.collectors import DeviceMemory, register_state
from service.metrics.exposition import CONTENT_TYPE, OPENMETRICS, render
from service.metrics.metrics import Metrics, aggregate
from service.metrics.names import MISDIRECTED, REASONS, TASKS, UNKNOWN
from service.metrics.tally import PROCESS, RECEIVE

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
