"""The table of metrics, made from what the code gives to a scrape."""

import os
import re
from types import SimpleNamespace
from typing import Any

from docs.tools.marks import markdown_table
from packbert.service.observability.metrics import Metrics, StateCollector, render
from packbert.service.scheduling.batcher import Batcher
from tests.service.fakes import FakeRunner, make_queue

COLUMNS = ("metric", "type", "labels", "unit", "meaning")
UNITS = {  # by the end of the name without _total: the first that fits
    "tokens_per_second": "tokens a second",
    "seconds": "seconds",
    "seconds_estimated": "seconds",
    "bytes": "bytes",
    "ratio": "0 to 1",
    "tokens": "tokens",
    "token_budget": "tokens",
    "texts": "texts",
    "characters": "characters",
    "sequences": "sequences",
    "cosine": "0 to 1",
    "first_candidates": "answers",
    "slots": "slots",
    "inputs": "inputs",
    "errors": "requests",
    "requests": "requests",
    "runs": "runs",
    "swaps": "swaps",
    "fds": "files",
    "info": "1",
    "execution_provider": "1",
    "ready": "0 or 1",
    "degraded": "0 or 1",
    "in_memory": "0 or 1",
}


def scrape() -> str:
    """What a service with a GPU would answer, with one response of each kind."""
    metrics = Metrics()
    metrics.add_task("embed")
    batcher = Batcher(run=FakeRunner().run, queue=make_queue(token_budget=8, max_tokens=20))
    metrics.observe_queue({"": batcher}, "CPU", degraded=False, device_memory=lambda: (0, 0))
    metrics.operational("/health", 200)
    metrics.agreed("", [1.0], [True])
    metrics.compared("", [0.0, 0.0])
    metrics.loaded("", 0.0)
    metrics.in_memory("", True)
    metrics.swapped("", "swapped")
    identity = SimpleNamespace(license="", languages=())
    manifest = SimpleNamespace(name="", precision="", device="", identity=identity)
    artifact: Any = SimpleNamespace(manifest=manifest, digest="")
    state = StateCollector([artifact], {"": os.getpid()}, {"": ""})
    return render([metrics.collector(), state])[0].decode()


def metrics_table() -> str:
    """Markdown, one row for each metric, in the order of names."""
    text = scrape()
    described = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    rows = [
        (f"`{name}`", kind, _labels(name, text), _unit(name), described[name].rstrip("."))
        for name, kind in sorted(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    ]
    return markdown_table(COLUMNS, *rows)


def _labels(name: str, text: str) -> str:
    series = re.findall(rf"^{name}(?:_count|_sum)?{{(.*)}} ", text, re.MULTILINE)
    found = dict.fromkeys(label for one in series for label in re.findall(r'(\w+)="', one))
    return ", ".join(f"`{label}`" for label in found)


def _unit(name: str) -> str:
    stated = name.removesuffix("_total")
    return next(unit for end, unit in UNITS.items() if stated.endswith(end))
