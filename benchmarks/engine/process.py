"""A contender as a process of its own, stopped while it is not its turn."""

import multiprocessing
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

READY_SECONDS, ANSWER_SECONDS, END_SECONDS = 120.0, 90.0, 10.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


class ContenderError(Exception):
    """A contender does not start, or cannot run these texts."""


class ContenderProcess:
    """A `benchmarks.engine.worker`, started by `command` with the number of its end of the pipe.

    It is stopped between requests: threads that spin after a run take no time from the next contender.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process fails
        self._pipe, its_end = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            [*command, str(its_end.fileno())],
            pass_fds=[its_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env=os.environ | OFFLINE | {"PYTHONUNBUFFERED": "1"},
        )
        its_end.close()

    def wait_until_ready(self) -> None:
        """Raises ContenderError if it does not start; then it is stopped."""
        self._receive(READY_SECONDS)
        self._signal(signal.SIGSTOP)

    def tune(self, texts: Sequence[Sequence[int]]) -> tuple[float, str]:
        """Lets it try its choices for `texts`; the seconds of the fastest one, and what was chosen."""
        return self._ask(texts)

    def seconds(self) -> float:
        """Of another turn over the texts that it was tuned for, measured inside of the process."""
        return self._ask(None)[0]

    def close(self) -> None:
        """Ends the process."""
        with suppress(ProcessLookupError):
            self._signal(signal.SIGCONT)
        self._pipe.close()  # its end
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _ask(self, request: Sequence[Sequence[int]] | None) -> tuple[float, str]:
        self._signal(signal.SIGCONT)
        self._pipe.send(request)
        answer: tuple[float, str] = self._receive(ANSWER_SECONDS)
        self._signal(signal.SIGSTOP)
        return answer

    def _receive(self, seconds: float) -> Any:
        try:
            if not self._pipe.poll(seconds):
                raise ContenderError(f"no answer for {seconds:.0f} s: {self._last_words()}")
            answer = self._pipe.recv()
        except EOFError:
            raise ContenderError(f"ended with status {self._process.wait()}: {self._last_words()}") from None
        if isinstance(answer, str) and answer:
            raise ContenderError(answer)
        return answer

    def _last_words(self) -> str:
        log = self._log.fileno()
        return os.pread(log, 300, max(0, os.fstat(log).st_size - 300)).decode(errors="replace").strip()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)
