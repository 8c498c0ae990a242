"""`python -m benchmarks.engine.contenders.worker NAME FOLDER THREADS POOLING`: one contender as a process.

A line of JSON on stdin is a request, a line of JSON on stdout its answer:

    {"tune": [[ids], ...], "known": VALUES}  a `Tuned`: the fastest arrangement for these texts, or VALUES if not null
    {"seconds": [[ids], ...]}                {"seconds": 0.5}, of one turn over these texts
    {"vectors": [[ids], ...], "to": PATH}    {}, and float32 [texts, hidden] in PATH
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.engine.contenders.arrangement import Arranged, Tuned, Values
from benchmarks.engine.contenders.padding import Ids, Vectors
from benchmarks.engine.contenders.table import CONTENDERS

PR_SET_PDEATHSIG = 1  # of prctl(2): the signal to get when the process that started this one ends


class Measured(Protocol):
    """What a process measures."""

    def tune(self, texts: Sequence[Ids], known: Values | None = None) -> Tuned: ...

    def seconds(self, texts: Sequence[Ids]) -> float: ...

    def vectors(self, texts: Sequence[Ids]) -> Vectors: ...


def open_contender(name: str, folder: Path, threads: int, pooling: str) -> Arranged:
    """The contender with the models in `folder`."""
    contender = CONTENDERS[name]
    module, kind = contender.engine.split(":")
    engine = getattr(importlib.import_module(module), kind)

    def open_engine(streams: int) -> Any:
        return engine(folder / contender.model, threads, streams, pooling, contender.options)

    arranged = Arranged(open_engine, threads, plain=contender.plain)
    arranged.warm_up(np.arange(5, 133, dtype=np.int32))
    return arranged


def serve(open_measured: Callable[[], Measured]) -> None:
    """Answers requests until stdin ends. What libraries print goes to stderr."""
    ctypes.CDLL(None).prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL
    )  # also while stopped, when the measuring process is killed
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        measured = open_measured()
        answers.write(json.dumps({"ready": True}) + "\n")
        for line in sys.stdin:
            answers.write(json.dumps(_answer(measured, json.loads(line))) + "\n")
    except Exception as error:  # noqa: BLE001 - an engine may raise anything: the measuring process reports it
        traceback.print_exc()
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}) + "\n")


def _answer(measured: Measured, request: dict[str, Any]) -> dict[str, Any]:
    (what, ids), *rest = request.items()
    texts = [np.array(one, np.int32) for one in ids]
    if what == "tune":
        return asdict(measured.tune(texts, dict(rest)["known"]))
    if what == "seconds":
        return {"seconds": measured.seconds(texts)}
    np.save(dict(rest)["to"], measured.vectors(texts))
    return {}


if __name__ == "__main__":
    name, folder, threads, pooling = sys.argv[1:]
    serve(partial(open_contender, name, Path(folder), int(threads), pooling))
