"""`SAMPLES=FILE python -m benchmarks.harness.sampled_null_model`: `null_model.py`, which counts its own Python stacks.

From SIGUSR2 on, every 4 ms of processor time; at its end it writes them to FILE: a line for each stack, outermost
function first, and its count. C code counts for the Python function that called it, the event loop's own for the one
that it calls next.
"""

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from benchmarks.harness import null_model

INTERVAL_SECONDS = 0.004  # the kernel's tick
COUNTS = Counter[str]()


def count_stack(_: int, frame: FrameType | None) -> None:
    stack = []
    while frame is not None:
        stack.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename})")
        frame = frame.f_back
    COUNTS[";".join(reversed(stack))] += 1


def main() -> int:
    signal.signal(signal.SIGPROF, count_stack)
    signal.signal(signal.SIGUSR2, lambda *_: signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS))
    code = null_model.main()
    signal.setitimer(signal.ITIMER_PROF, 0)
    Path(os.environ["SAMPLES"]).write_text("".join(f"{stack} {count}\n" for stack, count in COUNTS.items()))
    return code


if __name__ == "__main__":
    sys.exit(main())
