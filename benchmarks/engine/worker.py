"""`python -m benchmarks.engine.worker NAME FOLDER THREADS PIPE`: one contender as a process, for `ContenderProcess`.

NAME is a contender, whose models are in FOLDER; `ours` with a precision, whose artifact is FOLDER; or `ceiling` with a
precision, for the checkpoint FOLDER. PIPE is the number of an open file, the end of a `multiprocessing.Pipe`. A request
is a list of texts, for which all choices are tried, or None: the same texts again, with the fastest choice. Its answer
is the seconds of a turn and the name of that choice. An answer that is text is an error.
"""

import ctypes
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.engine.contenders import CONTENDERS, open_contender
from benchmarks.engine.engines import Ids

PR_SET_PDEATHSIG = 1  # of prctl(2): the signal to get when the process that started this one ends
READY = ""


class Measured(Protocol):
    """What a process measures."""

    def choices(self, texts: Sequence[Ids]) -> Mapping[str, Any]:
        """What can be chosen for these texts, by its name."""

    def seconds(self, texts: Sequence[Ids], choice: Any) -> float:
        """Of one turn over these texts."""


def open_measured(name: str, folder: Path, threads: int) -> Measured:
    if name in CONTENDERS:
        return open_contender(name, folder, threads)
    # what these need is not in the environment of the contenders
    from benchmarks.engine.alone import Ours
    from benchmarks.engine.ceiling import Ceiling

    what, precision = name.split()
    return Ours(folder, threads) if what == "ours" else Ceiling(folder, precision, threads)


def serve(pipe: Connection, open_it: Callable[[], Measured]) -> None:
    """Answers requests until the other end of the pipe closes, or this one fails."""
    # also while stopped, when the measuring process is killed
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        measured = open_it()
        pipe.send(READY)
        while True:
            if (request := pipe.recv()) is not None:
                texts = [np.array(ids, np.int32) for ids in request]
                choices = measured.choices(texts)
                taken = {name: measured.seconds(texts, choice) for name, choice in choices.items()}
                fastest = min(taken, key=taken.__getitem__)
                pipe.send((taken[fastest], fastest))
            else:
                pipe.send((measured.seconds(texts, choices[fastest]), fastest))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - an engine may raise anything: the measuring process reports it
        traceback.print_exc()
        pipe.send(f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    name, folder, threads, number = sys.argv[1:]
    serve(Connection(int(number)), partial(open_measured, name, Path(folder), int(threads)))
