"""The trial of a graph for CUDA, in a process of its own: `python -c` with TRIAL of `engine/device` and the artifact's
folder. The last line of output is the reason why the graph cannot be used, empty if it can."""

import os
import sys
from pathlib import Path

from ..artifact import read_artifact
from .calibration import self_test
from .runner import ModelRunner

MAX_CHARACTERS = 300  # of a reason


def main() -> None:
    """Prints the reason and ends the process at once: CUDA may be unable to clean up."""
    sys.stdout.write(f"\n{try_graph(Path(sys.argv[1]))}\n")
    sys.stdout.flush()
    os._exit(0)


def try_graph(folder: Path) -> str:
    """Why the graph of the CUDA artifact in `folder` cannot be used, on one line; empty if it can."""
    try:
        runner = ModelRunner(read_artifact(folder, "cuda"), threads=1)
        runner.open()
        self_test(runner)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the graph or the card is the finding
        reason = " ".join(str(error).split()) or "no message"
        return f"{type(error).__name__}: {reason}"[:MAX_CHARACTERS]
    return ""
