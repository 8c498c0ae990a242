"""Whether a request would be answered now, and when this process should end. Decides from facts; no clock, no loop, no model."""

from dataclasses import dataclass

MISSED = 3  # canaries in a row whose runs failed: every run fails, and a new process is the cure


@dataclass(slots=True, kw_only=True)
class CanaryHealth:
    """A wrong canary makes the engine not ready until one is right again; a fault is for good."""

    stale_seconds: float  # without a run that went well
    tolerance: float  # of the canary's vector
    loading: bool = True
    draining: bool = False
    fault: str = ""
    canary: str = ""  # what was wrong with the last one
    _missed: int = 0

    def reason(self, *, since_answer: float) -> str:
        """Why a request would not be answered now; empty when it would. `since_answer`: seconds since a run last went well."""
        if self.fault:
            return self.fault
        if self.loading:
            return "loading"
        if self.draining:
            return "draining"
        if self.canary:
            return self.canary
        return f"no run went well for {since_answer:.0f} s" if since_answer > self.stale_seconds else ""

    def canary_answered(self, difference: float) -> None:
        """Takes the largest absolute difference to the known vector."""
        self._missed = 0
        self.canary = "" if difference <= self.tolerance else f"the canary's vector is wrong by {difference:.3g}"

    def canary_failed(self, why: str) -> bool:
        """True when it has failed so often that the process should end."""
        self._missed += 1
        self.canary = f"the canary failed: {why}"
        return self._missed >= MISSED
