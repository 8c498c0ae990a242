"""The page of commands, made from their own help."""

import os
import subprocess
import sys

from packbert.commands import COMMANDS


def commands() -> str:
    """Markdown: a section for each command of `packbert` with what its --help prints."""
    return "\n".join(f"## packbert {name}\n\n```text\n{_help(name)}```\n" for name in COMMANDS)


def _help(name: str) -> str:
    environment = os.environ | {"COLUMNS": "100"}
    command = [sys.executable, "-m", "packbert", name, "--help"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
