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
from benchmarks.harness.client import ask_once, post
from benchmarks.harness.process import free_port
from benchmarks.peers.environments import FUSED, OFFLINE, programs

HERE = Path(__file__).parent
START_SECONDS, END_SECONDS = 180, 10


@dataclass(frozen=True, slots=True)
class Peer:
    """One server: its command, its request and its answer. The vector is the mean over tokens, of unit length."""

    command: Callable[[Path, int], Sequence[str]]  # model folder, port -> command line
    ask: Callable[[str], bytes]
    vector: Callable[[bytes], list[float]]
    variables: Callable[[int], Mapping[str, str]] = field(default=lambda port: OFFLINE)


def ours(precision: str) -> Peer:
    return Peer(
        command=lambda model, port: [sys.executable, "-m", "packbert", "serve"],
        ask=lambda text: post("/embed", {"inputs": text, "pooling": "mean", "normalize": True}),
        vector=lambda body: orjson.loads(body)[0],
        variables=lambda port: {"BERT_ARTIFACT": str(BUILD / f"base-{precision}"), "BERT_PORT": str(port)},
    )


def infinity(*options: str) -> Peer:
    program = (
        "v2",
        "--no-model-warmup",
        "--served-model-name",
        "model",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--log-level",
        "error",
    )
    return Peer(
        command=lambda model, port: [
            f"{programs('infinity')}/infinity_emb",
            *program,
            "--model-id",
            str(model),
            "--port",
            str(port),
            *options,
        ],
        ask=lambda text: post("/embeddings", {"model": "model", "input": text}, **{"content-type": "application/json"}),
        vector=lambda body: orjson.loads(body)["data"][0]["embedding"],
    )


def own_application(ask: str, command: Callable[[Path, int], Sequence[str]]) -> Peer:
    """A small server that this package puts around a library."""
    return Peer(
        command=command,
        ask=lambda text: post(ask, {"input": text}, **{"content-type": "application/json"}),
        vector=lambda body: orjson.loads(body)["embedding"],
    )


def _litserve(model: Path, port: int) -> Sequence[str]:
    return [
        f"{programs('litserve')}/python",
        f"{HERE}/litserve_padded.py",
        f"{model}/{FUSED}",
        f"{model}/tokenizer.json",
        str(port),
    ]


def _sentence_transformers(model: Path, port: int) -> Sequence[str]:
    return [
        f"{programs('sentence_transformers')}/python",
        f"{HERE}/sentence_transformers_app.py",
        str(model),
        str(port),
    ]


PEERS: dict[str, Peer] = {
    "ours fp32": ours("fp32"),
    "ours int8": ours("int8"),
    "infinity torch": infinity("--engine", "torch"),
    "infinity torch padded": infinity("--engine", "torch", "--no-bettertransformer"),
    "infinity onnx": infinity("--engine", "optimum", "--pooling-method", "mean", "--onnx-do-not-prefer-quantized"),
    "litserve padded onnx": own_application("/predict", _litserve),
    "sentence-transformers": own_application("/embed", _sentence_transformers),
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
