"""A process whose event loop hangs is ended, one that was stopped for a while is not."""

import os
import signal
import subprocess
import sys
import time

import pytest

HANGS = """
import asyncio, os, sys, time
from packbert.service.http.server import watch_loop

async def hang_for_ever():
    watch_loop(asyncio.get_running_loop(), check_seconds=0.01)
    await asyncio.sleep(0.1)
    for size in sys.argv[1:]:
        os.write(2, bytes(int(size)))
    time.sleep(600)

asyncio.run(hang_for_ever())
"""
TURNS = """
import asyncio
from packbert.service.http.server import watch_loop

async def turn():
    watch_loop(asyncio.get_running_loop(), check_seconds=0.02)
    print("watched", flush=True)
    await asyncio.to_thread(input)

asyncio.run(turn())
"""
CLOSES = """
import asyncio, threading
from packbert.service.http.server import watch_loop

class Loop(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(self, *args):
        called.set()
        return super().call_soon_threadsafe(*args)

loop, called = Loop(), threading.Event()
watch_loop(loop, check_seconds=0.5)
called.wait()
loop.close()
for thread in threading.enumerate():
    if thread.name == "loop-watchdog":
        thread.join()
"""


@pytest.mark.parametrize("sizes", [[], ["65436"], ["65536", "1"]], ids=["read", "all but full", "full"])
def test_a_process_whose_event_loop_hangs_ends_and_says_where(sizes: list[str]) -> None:
    """Also if nobody reads its stderr, a pipe, which takes 64 KiB."""
    with subprocess.Popen([sys.executable, "-c", HANGS, *sizes], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=60) == 1
            assert process.stderr is not None
            said = process.stderr.read()
        finally:
            process.kill()
    assert sizes or (b"the event loop has hung for 0.2 s" in said and b"in hang_for_ever" in said)


def test_a_process_whose_loop_is_closed_before_it_calls_back_goes_on() -> None:
    ended = subprocess.run([sys.executable, "-c", CLOSES], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_process_that_was_stopped_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "watched\n"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        end = time.monotonic() + 1.0  # longer than the watchdog waits
        while time.monotonic() < end:
            subprocess.run(["true"], check=True)
        process.send_signal(signal.SIGCONT)
        process.communicate("\n")
    assert process.returncode == 0
