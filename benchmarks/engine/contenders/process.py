"""A contender as a process of its own, stopped while it is not its turn."""

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.contenders.arrangement import Tuned, Values
from benchmarks.engine.contenders.padding import Ids, Vectors

READY_SECONDS, ANSWER_SECONDS, END_SECONDS = 120.0, 90.0, 10.0
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}


class ContenderError(Exception):
    """A contender does not start, or cannot run these texts."""


class ContenderProcess:
    """A worker (`benchmarks.engine.contenders.worker` or `benchmarks.engine.contenders.ours`) and its pipe.

    It is stopped between requests: threads that spin after a run take no time from the next contender.
    """

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process fails
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env=os.environ | ENVIRONMENT,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout

    def wait_until_ready(self) -> None:
        """Raises ContenderError where it does not start; then it is stopped."""
        self._read(READY_SECONDS)
        self._signal(signal.SIGSTOP)

    def tune(self, texts: Sequence[Ids], known: Values | None = None) -> Tuned:
        """Lets it take the arrangement `known` for `texts`, or else its fastest one."""
        return Tuned(**self._ask({"tune": _ids(texts), "known": known}))

    def seconds(self, texts: Sequence[Ids]) -> float:
        """Of one turn over `texts`, measured inside of the process."""
        seconds: float = self._ask({"seconds": _ids(texts)})["seconds"]
        return seconds

    def vectors(self, texts: Sequence[Ids]) -> Vectors:
        """A vector for each text."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vectors.npy"
            self._ask({"vectors": _ids(texts), "to": str(path)})
            rows: Vectors = np.load(path)
        return rows

    def close(self) -> None:
        """Ends the process."""
        with suppress(ProcessLookupError):
            self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):
            self._in.close()  # its end
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()
        self._out.close()
        self._log.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        self._in.write(json.dumps(request).encode() + b"\n")
        self._in.flush()
        answer = self._read(ANSWER_SECONDS)
        self._signal(signal.SIGSTOP)
        return answer

    def _read(self, seconds: float) -> dict[str, Any]:
        ready, _, _ = select.select([self._out], [], [], seconds)
        line = self._out.readline() if ready else b""
        if not line:
            raise ContenderError(f"{self._end() if ready else f'no answer for {seconds:.0f} s'}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    def _end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            return f"ended with status {self._process.wait(END_SECONDS)}"
        return "closed its output"

    def _last_words(self) -> str:
        log = self._log.fileno()
        return os.pread(log, 300, max(0, os.fstat(log).st_size - 300)).decode(errors="replace").strip()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


def _ids(texts: Sequence[Ids]) -> list[list[int]]:
    return [ids.tolist() for ids in texts]
