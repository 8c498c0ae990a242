"""The life of a process: it answers from the first second to the last, and SIGTERM ends each of its states."""

import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from benchmarks.harness.process import free_port
from packbert.service.http.server import RETRY_SECONDS
from tests.service.model_cache.helpers import artifacts_in, copy_checkpoint, sigterm_in, start, stop_exporter
from tests.service.polling import until

PATIENCE = 120.0  # seconds on a busy machine for what takes a few
NEVER = 600.0  # seconds
ADMIN_KEY = "the key of the administrator"
PROBE = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
SERVE = ("-m", "packbert", "serve")
NEVER_LOADS = (
    "import sys, time; from packbert.service.engine.runner import ModelRunner; "
    f"ModelRunner.open = lambda *_: time.sleep({NEVER}); "
    "from packbert.service.__main__ import end, main; end(main(sys.argv[1:]))"
)
FIRST, LATER, SWAP = "first start", "later start", "swap"
MOMENTS = {FIRST: 4, LATER: 3, SWAP: 3}  # and one more at the end of each


class Life:
    """A service in a process of its own, and a client that asks for /health all the time."""

    def __init__(self, *words: str, **variables: str) -> None:
        self.port, self.mark, self.answers = free_port(), uuid4().hex, list[str]()
        given = {"BERT_PORT": str(self.port), "BERT_TOKEN_BUDGET": "256", "LIFE": self.mark, **variables}
        self.process = start([sys.executable, *words], **given)
        self._polling = threading.Thread(target=self._poll)
        self._polling.start()

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.end()

    def end(self) -> str:
        """Waits until the process and all that it has started have ended; its log."""
        _, log = self.process.communicate(timeout=PATIENCE)
        self._polling.join()
        until(lambda: not running(self.mark), PATIENCE)
        return log

    def terminate(self, signals: int = 1) -> None:
        """When it can receive a signal: before, the system's default ends it. Two signals may be received as one, so
        the second is repeated until it ends."""
        until(lambda: sigterm_in("SigCgt", self.process.pid))
        self.process.terminate()
        began = time.monotonic()
        while signals > 1 and self.process.poll() is None and time.monotonic() < began + PATIENCE:
            threading.Event().wait(0.2)
            self.process.terminate()

    def ask(self, path: str, **body: str) -> httpx.Response:
        """Sends a POST where there is a body."""
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.request("POST" if body else "GET", url, json=body or None, headers=headers, timeout=PATIENCE)

    def status(self, path: str, **body: str) -> int:
        """0 where there is no answer."""
        with suppress(httpx.TransportError):
            return self.ask(path, **body).status_code
        return 0

    def check_answers(self) -> None:
        """From the first one to the last there was no other."""
        from_first = list(dropwhile(lambda one: not one, self.answers))
        assert set(dropwhile(lambda one: not one, reversed(from_first))) <= {"200"}, self.answers

    def _poll(self) -> None:
        """Keeps the status of each answer; nothing where no connection could be made, or it was lost."""
        while self.process.poll() is None:
            answer = ""
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
                connection.sendall(PROBE)
                answer = connection.recv(2**16)[9:12].decode()
            self.answers.append(answer)
            threading.Event().wait(0.02)


def running(mark: str) -> list[str]:
    """The command lines of the processes that have inherited LIFE with this value."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # of another user, or ended meanwhile
            if f"LIFE={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def live(kind: str, folder: Path, artifact: Path, *, moment: float | None = None, signals: int = 1) -> float:
    """A service that gets signals after `moment` seconds of a state, or at the end of it; the seconds until then."""
    folder.mkdir()
    model = copy_checkpoint(folder / "model") if kind == FIRST else artifact
    settings = {"BERT_CACHE": str(folder / "cache"), "BERT_SERVED_MODEL_NAME": "model", "BERT_ADMIN_KEY": ADMIN_KEY}
    with Life(*SERVE, str(model), **settings) as life, ThreadPoolExecutor(1) as pool:
        swapping: Future[int] | None = None
        if kind == SWAP:
            until(lambda: life.status("/ready") == 200, PATIENCE)
            source = str(copy_checkpoint(folder / "new"))
            swapping = pool.submit(life.status, "/admin/models", model="model", source=source)
        began = time.monotonic()
        if moment is not None:
            threading.Event().wait(moment)
        else:
            until(swapping.done if swapping else lambda: life.status("/ready") == 200, PATIENCE)
        ended = time.monotonic()
        life.terminate(signals)
        log = life.end()
        where = f"{kind}, {moment} s, {signals} signals: {log}"
        assert life.process.returncode == 0, where
        life.check_answers()
        assert swapping is None or swapping.result() in {200, 503, *([0] if signals > 1 else [])}, where
    left = artifacts_in(folder / "cache")
    assert not left or (any(one.endswith("/manifest.json") for one in left) and ".partial" not in str(left)), where
    return ended - began


def test_sigterm_at_any_moment_ends_the_process_and_leaves_nothing_half(tmp_path: Path, bert_artifact: Path) -> None:
    """At 13 moments of a start with an export, of one without, and of a swap; each second time it comes twice."""
    with ThreadPoolExecutor(3) as pool:
        whole = {kind: pool.submit(live, kind, tmp_path / kind, bert_artifact) for kind in MOMENTS}
        ended = []
        for kind, count in MOMENTS.items():
            for number in range(count):
                moment, folder = whole[kind].result() * number / count, tmp_path / f"{kind} {number}"
                signals = 1 + number % 2
                ended.append(pool.submit(live, kind, folder, bert_artifact, moment=moment, signals=signals))
        for one in ended:
            one.result()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_load_that_never_ends_is_not_waited_for(signals: int, bert_artifact: Path) -> None:
    with Life("-c", NEVER_LOADS, str(bert_artifact)) as life:
        until(lambda: life.status("/ready") == 503, PATIENCE)
        refused = life.ask("/embed", inputs="a")
        assert (refused.status_code, refused.json()["code"]) == (503, "loading")
        life.terminate(signals)
        assert "packbert serve: stopped before it served" in life.end() or signals == 2
        assert life.process.returncode == 0
        life.check_answers()


def test_a_service_that_exports_its_model_is_alive_and_not_ready(tmp_path: Path) -> None:
    with Life(*SERVE, str(copy_checkpoint(tmp_path / "model")), BERT_CACHE=str(tmp_path / "cache")) as life:
        exporter = stop_exporter(life.process)
        until(lambda: "exporting for cpu in fp32" in life.ask("/ready").text, PATIENCE)
        assert life.ask("/ready").status_code == 503
        refused = life.ask("/v1/embeddings", input="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "exporting")
        assert refused.headers["retry-after"] == f"{RETRY_SECONDS:g}"
        os.kill(exporter, signal.SIGCONT)
        until(lambda: life.status("/ready") == 200, PATIENCE)
        assert life.status("/embed", inputs="the cat") == 200
        assert 'bert_requests_total{status="503",task="embeddings"} 1.0' in life.ask("/metrics").text
        life.terminate()
        life.end()
        assert life.process.returncode == 0
        life.check_answers()


@pytest.mark.parametrize(("drain", "signals"), [("1", 1), (str(NEVER), 2)])
def test_an_endless_export_is_killed_after_the_drain_or_left(drain: str, signals: int, tmp_path: Path) -> None:
    model, cache = copy_checkpoint(tmp_path / "model"), tmp_path / "cache"
    with Life(*SERVE, str(model), BERT_CACHE=str(cache), BERT_DRAIN_SECONDS=drain) as life:
        exporter = stop_exporter(life.process)
        (lock,) = (cache / "locks").iterdir()
        (cache / "artifacts" / f"model-{lock.name}" / "cpu.partial").mkdir(parents=True)  # as it writes
        life.terminate(signals)
        if signals == 2:
            life.process.wait(PATIENCE)
            os.kill(exporter, signal.SIGCONT)
        life.end()
        assert life.process.returncode == 0
        life.check_answers()
    assert signals == 2 or artifacts_in(cache) == []


CHILDREN = {
    "CUDA": "from packbert.service.engine.device import _run_child; _run_child('import time; time.sleep(600)')",
    "tokenizer": "from pathlib import Path; from packbert.model_export.tokenizer_check import *; "
    "fault_of(Path('x'), ModelBounds(vocabulary=1, segments=1, max_tokens=1), module='tests.service.test_life')",
}


@pytest.mark.parametrize("what", CHILDREN)
def test_a_check_ends_with_the_process_that_was_killed(what: str) -> None:
    mark = uuid4().hex
    with start([sys.executable, "-c", CHILDREN[what]], LIFE=mark) as parent:
        until(lambda: len(running(mark)) == 2)
        parent.kill()
    until(lambda: not running(mark))


if __name__ == "__main__":  # as the child of the check of a tokenizer
    from packbert.model_export import tokenizer_check

    tokenizer_check._limit_resources = lambda: time.sleep(NEVER)
    tokenizer_check.check_in_child(tokenizer_check.load)
