"""Starts of `packbert serve` that are expected to fail."""

import subprocess
import sys


def fail_to_serve(settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The end of a start with these variables and no others; the machine's GPUs are hidden from it."""
    return subprocess.run(
        [sys.executable, "-m", "packbert", "serve"],
        env={"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": ""} | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
