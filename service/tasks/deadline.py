"""The deadline of the running request: set where the request is admitted, read where it waits."""

import math
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from packbert.service.errors import DeadlineExceeded


@dataclass(slots=True, eq=False)  # made for each request: a frozen one takes four times as long
class Deadline:
    """The time in which a request is answered."""

    seconds: float
    max_seconds: float = 0.0  # up to which it follows the size of the request; 0: the client has set it
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds_left(self) -> float:
        """Negative when it has passed."""
        return self.started + self.seconds - time.perf_counter()

    def exceeded(self, when: str) -> DeadlineExceeded:
        """The error of a request whose deadline has passed before it is queued."""
        return DeadlineExceeded(f"the deadline passed after {self.seconds:.3f} s, {when}")


NO_DEADLINE = Deadline(math.inf)
DEADLINE: ContextVar[Deadline] = ContextVar("deadline", default=NO_DEADLINE)
