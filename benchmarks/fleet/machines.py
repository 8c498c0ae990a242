"""What a replica is simulated with: how long a run takes, fitted to what `benchmarks.server` measured."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.mixes import MIXES
from packbert.service.scheduling.cores import SERIAL, Concurrency

RESULTS = Path(__file__).parents[1] / "results"
MIX, SINGLE = "STS-B: 64 sentences", 16  # of the fit: the lengths of the full batches; tokens of the text that is alone
MEASURED = {  # name -> results/server-*.json, whether each core runs its own batches
    "BERT-base fp32": ("base-fp32", False),
    "BERT-base int8": ("base-int8", True),
    "bundled, fp32": ("sample", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A run takes `fixed_seconds` and, for each token, `token_seconds` of one core session, or less on all of them."""

    token_budget: int
    tokens_per_second: float  # of the whole server, in full batches
    fixed_seconds: float
    token_seconds: float  # on one session
    overhead_seconds: float  # of a request outside of the queue and the run
    refusal_seconds: float = 54e-6  # processor time of a 429 with 32 connections: results/overhead.json
    concurrency: Concurrency = SERIAL

    def run_seconds(self, tokens: int, *, all_cores: bool) -> float:
        """The fixed part does not become shorter on several cores: the weights are read once in any case."""
        sessions = self.concurrency.side_by_side if all_cores else 1
        return self.fixed_seconds + self.token_seconds * tokens / sessions

    def scaled(self, fixed: float, tokens: float) -> "Machine":
        """With both parts of a run multiplied."""
        return replace(
            self,
            tokens_per_second=self.tokens_per_second / tokens,
            fixed_seconds=self.fixed_seconds * fixed,
            token_seconds=self.token_seconds * tokens,
        )


def read(name: str) -> dict[str, Any]:
    """The file of `name` in MEASURED."""
    content: dict[str, Any] = json.loads((RESULTS / f"server-{MEASURED[name][0]}.json").read_text("utf-8"))
    return content


def measured(name: str) -> Machine:
    """Two measured points give both parts of a run: 16 tokens alone on all cores, and the rate of full batches."""
    content, per_core = read(name), MEASURED[name][1]
    one, budget = content["result"][MIX], content["measured"]["token_budget"]
    rate = one["texts_per_second"]["json"] * sum(MIXES[MIX]) / len(MIXES[MIX])
    concurrency = Concurrency(content["machine"]["cores"], per_core=True) if per_core else SERIAL
    sessions = concurrency.side_by_side
    single, server = (one["single"][f"{whose} p50 ms"] / 1000 for whose in ("engine", "server"))
    token_seconds = (sessions * budget / rate - single) / (budget - SINGLE / sessions)
    return Machine(
        token_budget=budget,
        tokens_per_second=rate,
        fixed_seconds=single - token_seconds * SINGLE / sessions,
        token_seconds=token_seconds,
        overhead_seconds=server - single,
        concurrency=concurrency,
    )
