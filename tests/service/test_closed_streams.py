"""A process that starts with closed standard descriptors has /dev/null in their place, as have those it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPORT = """
import os, subprocess, sys
import packbert.service as service
for stream in (sys.stdout, sys.stderr):
    print("text", file=stream, flush=True)
code = "import json, os, sys; json.dump([os.readlink(f'/proc/self/fd/{n}') for n in range(3)], open(sys.argv[1], 'w'))"
subprocess.run([sys.executable, "-c", code, sys.argv[1]], check=True)
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_null_takes_the_place_of_closed_descriptors(tmp_path: Path, closed: tuple[int, ...]) -> None:
    redirections = " ".join(f"{number}>&-" for number in closed)
    report = tmp_path / "report"
    command = f'exec "$0" "$@" {redirections}'
    finished = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, "-c", REPORT, str(report)],
        check=False,
        stdin=subprocess.PIPE,
        capture_output=True,
    )
    assert (finished.returncode, finished.stderr) == (0, b"" if 2 in closed else b"text\n")
    opened = [number for number, path in enumerate(json.loads(report.read_text())) if path == os.devnull]
    assert opened == list(closed)
