"""Starts of `packbert serve`: with a client, or expected to fail."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from benchmarks.harness.process import ServiceProcess

REPLY_SECONDS = 60  # the default of 5 passes where more processes run than there are cores


@contextmanager
def running(settings: Mapping[str, str], **headers: str) -> Iterator[tuple[ServiceProcess, httpx.Client]]:
    """A service that is ready, and a client that sends the headers."""
    with (
        ServiceProcess(settings) as process,
        httpx.Client(base_url=process.url, headers=headers, timeout=REPLY_SECONDS) as client,
    ):
        yield process, client


def fail_to_serve(settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The end of a start with these variables and no others; the machine's GPUs are hidden from it."""
    return subprocess.run(
        [sys.executable, "-m", "packbert", "serve"],
        env={"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "", "BERT_PORT": "0"} | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
