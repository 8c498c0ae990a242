"""What a scenario is given and what it returns; the texts that all scenarios send."""

import random
from dataclasses import dataclass

# words of the bundled model
WORDS = ["the", "river", "flows", "through", "city", "and", "it", "is", "long", "wide", "my", "dog", "was", "hairy"]
WORDS += ["old", "house", "near", "sea"]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How much load each scenario sends; a field is read by the scenario that its comment names."""

    seconds: float  # overload, waits
    minutes: float  # memory
    times: int  # sigterm
    rolling: int  # requests
    answers: int  # mixups
    singles: int  # idle, fairness: single texts that are timed
    pause: float  # memory: seconds at most between two requests of a client


@dataclass(frozen=True, slots=True)
class Target:
    """A running server on 127.0.0.1."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One measured figure, and its bound where it has one."""

    scenario: str
    what: str
    measured: float
    bound: str = ""
    holds: bool | None = None  # None: no bound


def random_text(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


def increase(before: dict[str, float], after: dict[str, float], name: str) -> float:
    """By how much the metric `name` has grown between two scrapes."""
    return after[name] - before[name]
