"""The page of commands, made from their own help."""

import os
import re
import subprocess
import sys

from packbert.commands import COMMANDS


def commands() -> str:
    """Markdown: a section for each command of `packbert` with what its --help prints."""
    return "\n".join(f"## packbert {name}\n\n```text\n{_help(name)}```\n" for name in COMMANDS)


def _help(name: str) -> str:
    environment = os.environ | {"COLUMNS": "100"}
    command = [sys.executable, "-m", "packbert", name, "--help"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    # Python 3.13 names the value of an option once, and then has room for the help on the same line.
    shown = re.sub(r"^(  -\w) (\S+), (--\S+ \2)$", r"\1, \3", shown, flags=re.MULTILINE)
    return re.sub(r"^(  -\w, --\S+ \S+)\s+(\S)", r"\1  \2", shown, flags=re.MULTILINE)
