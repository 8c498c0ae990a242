"""`python -m benchmarks.server.visits ARTIFACT [ROUTE BODY]`: how much of the code a warm request runs, in one process.

Without a route it is a `/fill-mask`.

Counts what runs of `service/` and `model_export/` on all threads, from the first byte received until the process is
idle again: the files entered, the visits to a file (a call from another file or from a library) and the Python calls (a
coroutine or generator that goes on is called again). Each number is the median of REQUESTS requests.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median
from types import FrameType

from benchmarks.harness.client import get, post
from benchmarks.harness.process import START_SECONDS, free_port
from packbert.service.__main__ import main as serve

ROOT = str(Path(__file__).parents[2])
PACKAGES = ("service", "model_export")
ROUTE, BODY = "/fill-mask", '{"inputs": "paris is the [MASK] of france."}'
WARMUP, REQUESTS = 20, 21
IDLE_SECONDS = 0.05  # after the response: what the process still does for the request


class Visits:
    """A profile function for all threads; it counts while `counting`."""

    def __init__(self) -> None:
        self.counting = False
        self.calls: Counter[str] = Counter()  # by "file:function"
        self.visits: Counter[str] = Counter()  # by file
        self._files: dict[str, str] = {}  # by the name in the code: the path in the repository, empty for a library's

    def start(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def reset(self) -> None:
        self.calls.clear()
        self.visits.clear()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self.counting or not (file := self._file(frame)):
            return
        self.calls[f"{file}:{frame.f_code.co_qualname}"] += 1
        if frame.f_back is None or self._file(frame.f_back) != file:
            self.visits[file] += 1

    def _file(self, frame: FrameType) -> str:
        name = frame.f_code.co_filename
        if name not in self._files:
            path = os.path.relpath(os.path.realpath(name), ROOT)
            self._files[name] = path if path.startswith(PACKAGES) else ""
        return self._files[name]


def ask(port: int, request: bytes, counter: Visits, measured: list[tuple[int, int, int]]) -> None:
    """Waits for the server, sends the requests one after another, and ends the server."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and send(port, get("/ready")) != b"200":
        time.sleep(IDLE_SECONDS)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(WARMUP + REQUESTS):
            counter.reset()
            counter.counting = True
            connection.sendall(request)
            assert connection.recv(2**16)[9:12] == b"200"
            time.sleep(IDLE_SECONDS)
            counter.counting = False
            if number >= WARMUP:
                measured.append((len(counter.visits), sum(counter.visits.values()), sum(counter.calls.values())))
    os.kill(os.getpid(), signal.SIGTERM)


def send(port: int, request: bytes) -> bytes:
    """The status of the answer; empty where the port does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request)
            return connection.recv(2**16)[9:12]
    except OSError:
        return b""


def main(artifact: str, route: str = ROUTE, body: str = BODY) -> None:
    counter, port, measured = Visits(), free_port(), list[tuple[int, int, int]]()
    own = {"MODEL": artifact, "PORT": str(port), "HOST": "127.0.0.1", "DRAIN_SECONDS": "0", "LOG_LEVEL": "warning"}
    os.environ.update({f"BERT_{name}": value for name, value in own.items()})
    counter.start()
    client = threading.Thread(target=ask, args=(port, post(route, json.loads(body)), counter, measured))
    client.start()
    serve()
    sys.setprofile(None)
    client.join()
    for name, count in counter.calls.most_common():
        print(f"{count:4} {name}")
    for number, name in enumerate(("files", "visits", "calls")):
        print(f"{name}: {median(each[number] for each in measured):g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
