"""What the batcher counts: batches that were run, requests by outcome, failures."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One successful run."""

    sequences: int
    tokens: int
    slots: int  # attention slots, filled or not
    waited_seconds: float  # the longest wait in the batch
    ran_seconds: float


@dataclass(slots=True)
class RequestCounts:
    """Requests by outcome. At any moment received = all the others + those still in the batcher. Canaries count too."""

    received: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    expired: int = 0

    def refuse(self, requests: int) -> None:
        self.received += requests
        self.refused += requests


@dataclass(slots=True)
class RunFailures:
    failed_runs: int = 0  # raised an exception, or gave no finite answer
    out_of_memory: int = 0  # of those
