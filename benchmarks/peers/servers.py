"""The servers that are compared, ours among them: how each is started, how it is asked, and how its answer is read.

Only one of them runs at a time; the others are stopped.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.harness.checkpoints import BUILD
from benchmarks.harness.client import ANSWER_SECONDS, ask_once, post
from benchmarks.harness.process import free_port, memory_mib
from benchmarks.peers.environments import VARIABLES, programs

HERE = Path(__file__).parent
JSON = {"content-type": "application/json"}
START_SECONDS, END_SECONDS = 180, 10
SESSION, USER, SYSTEM = 3, 11, 12  # fields of /proc/PID/stat after the name
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Peer:
    """One server: its command, its request and its answer. The vector is the mean over tokens, of unit length."""

    command: Callable[[Path, int], Sequence[str]]  # model folder, port -> command line
    ask: Callable[[str], bytes]
    vector: Callable[[bytes], list[float]]
    variables: Callable[[int], Mapping[str, str]] = field(default=lambda port: VARIABLES)


def ours(precision: str) -> Peer:
    return Peer(
        command=lambda model, port: [sys.executable, "-m", "packbert", "serve"],
        ask=lambda text: post("/embed", {"inputs": text, "pooling": "mean", "normalize": True}),
        vector=lambda body: orjson.loads(body)[0],
        variables=lambda port: {
            "BERT_MODEL": str(BUILD / f"base-{precision}"),
            "BERT_PORT": str(port),
            "BERT_MAX_WAIT_SECONDS": f"{ANSWER_SECONDS:.0f}",  # the others refuse no request
        },
    )


def infinity(*options: str) -> Peer:
    return Peer(
        command=lambda model, port: [
            *(f"{programs('infinity')}/infinity_emb", "v2", "--no-model-warmup", "--log-level", "error"),
            *("--model-id", str(model), "--served-model-name", "model", "--port", str(port)),
            *("--device", "cpu", "--batch-size", "8", *options),
        ],
        ask=lambda text: post("/embeddings", {"model": "model", "input": text}, **JSON),
        vector=lambda body: orjson.loads(body)["data"][0]["embedding"],
    )


def own_application(name: str, ask: str, **variables: str) -> Peer:
    """A small server that this package puts around a library: `NAME_app.py`."""
    return Peer(
        command=lambda model, port: [f"{programs(name)}/python", f"{HERE}/{name}_app.py", str(model), str(port)],
        ask=lambda text: post(ask, {"input": text}, **JSON),
        vector=lambda body: orjson.loads(body)["embedding"],
        variables=lambda port: VARIABLES | variables,
    )


PEERS: dict[str, Peer] = {  # each as it is fastest at 32 connections, of the settings that were tried
    "ours fp32": ours("fp32"),
    "ours int8": ours("int8"),
    "infinity torch": infinity("--engine", "torch", "--dtype", "float32"),
    "infinity torch int8": infinity("--engine", "torch", "--no-bettertransformer", "--dtype", "int8"),
    "infinity onnx": infinity(
        "--engine", "optimum", "--pooling-method", "mean", "--dtype", "float32", "--onnx-do-not-prefer-quantized"
    ),
    "litserve padded onnx": own_application("litserve", "/predict"),
    "sentence-transformers": own_application("sentence_transformers", "/embed"),
    "candle": own_application("candle", "/embed", OMP_NUM_THREADS="1"),  # each of its threads computes another text
}


@dataclass(slots=True)
class Running:
    """A server with all its processes, in a session of their own."""

    peer: Peer
    port: int
    process: subprocess.Popen[bytes]

    @contextmanager
    def awake(self) -> Iterator[int]:
        """Its port; outside the `with` it is stopped, so that an idle server takes no time from the others."""
        self.signal(signal.SIGCONT)
        yield self.port
        self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def vector(self, text: str) -> NDArray[np.float32]:
        with self.awake() as port:
            outcome = asyncio.run(ask_once(port, self.peer.ask(text)))
        return np.array(self.peer.vector(outcome.body), np.float32)

    def spent(self) -> dict[int, float]:
        """Seconds of processor time so far of each of its processes, by process id."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended since it was listed
                fields = path.read_text().rpartition(") ")[2].split()
                if int(fields[SESSION]) == self.process.pid:
                    found[int(path.parent.name)] = (int(fields[USER]) + int(fields[SYSTEM])) / TICKS
        return found

    def memory_mib(self) -> float:
        """Of all its processes; pages that several of them map count once."""
        return sum(memory_mib(process)["Pss"] for process in self.spent())

    def wait_until_ready(self) -> None:
        """Raises SystemExit if the server ends or is not ready in time."""
        end = time.monotonic() + START_SECONDS
        while asyncio.run(ask_once(self.port, self.peer.ask("a"))).status != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.process.args!r} does not start: see build/peers/*.log")
            time.sleep(0.5)
        self.signal(signal.SIGSTOP)

    def end(self) -> None:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self.process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()


def start(name: str, model: Path) -> Running:
    """Starts a server, waits until it is ready, and stops its processes; it writes to build/peers/NAME.log."""
    peer, port = PEERS[name], free_port()
    variables = os.environ | peer.variables(port)
    with (model.parent / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            peer.command(model, port), env=variables, start_new_session=True, stdout=log, stderr=log
        )
    running = Running(peer, port, process)
    try:
        running.wait_until_ready()
    except BaseException:
        running.end()
        raise
    return running
