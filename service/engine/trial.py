"""The trial of a graph for CUDA, in a process of its own: it opens the graph and runs the self-test.

A wrong answer is the least that can go wrong. An illegal access leaves CUDA unusable for the rest of the process, a
crash ends it, and a kernel may never return. The process that serves survives none of these, so it starts this one
first: `python -c` with TRIAL of `engine/device`, the artifact's folder, `packed` or `plain`. Its last line of output
is the reason why the graph cannot be used, empty where it can. Knows one card and one graph; does not know what is
served instead.
"""

import os
import sys
import threading
from pathlib import Path

from packbert.service.artifact import Manifest, read_artifact
from packbert.service.engine.calibration import self_test
from packbert.service.engine.runner import ModelRunner
from packbert.service.engine.session import compute_capability, load_cuda_libraries

LEAST_CAPABILITY = (7, 5)  # onnxruntime-gpu 1.31 has no kernels for older cards
HEAD_STEP, LARGEST_HEAD = 8, 256  # of the flash kernel
MAX_CHARACTERS = 300  # of a reason


def main() -> None:
    """Prints the reason and ends the process at once: CUDA may be unable to clean up."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder, graph = Path(sys.argv[1]), sys.argv[2]
    sys.stdout.write(f"\n{try_graph(folder, plain=graph == 'plain')}\n")
    sys.stdout.flush()
    os._exit(0)


def try_graph(folder: Path, *, plain: bool) -> str:
    """Why the graph of the CUDA artifact in `folder` cannot be used, on one line; empty where it can."""
    try:
        artifact = read_artifact(folder, "cuda", plain=plain)
        load_cuda_libraries()
        if not plain and (refusal := why_packed_refused(artifact.manifest, compute_capability())):
            return refusal
        runner = ModelRunner(artifact, threads=1)
        runner.open()
        self_test(runner)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the graph or the card is the finding
        reason = " ".join(str(error).split()) or "no message"
        return f"{type(error).__name__}: {reason}"[:MAX_CHARACTERS]
    return ""


def why_packed_refused(manifest: Manifest, capability: tuple[int, int] | None) -> str:
    """Why the kernels of PackedMultiHeadAttention are not for this card or model; empty where they are.

    With another head size the operator works, but pads: its workspace is that of the padded batch.
    """
    if capability is not None and capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, version)) for version in (capability, LEAST_CAPABILITY))
        return f"the card has compute capability {found}, and packed attention needs {least}"
    size = manifest.sizes["hidden"] // manifest.sizes["heads"]
    if size % HEAD_STEP or size > LARGEST_HEAD:
        return f"heads have {size} channels, and packed attention needs a multiple of {HEAD_STEP} up to {LARGEST_HEAD}"
    return ""


def _end_with_parent() -> None:
    """The parent holds the other end of standard input."""
    sys.stdin.buffer.read()
    os._exit(1)
