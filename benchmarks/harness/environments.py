"""Makes an environment of its own for packages that the project does not depend on."""

import shutil
import subprocess
import sys
from pathlib import Path


def programs(wanted: Path, folder: Path) -> Path:
    """The bin folder of the environment in `folder` with the packages of the requirements file `wanted`.

    It is made once, and changed when `wanted` changes. torch is installed first, so that the other packages keep the
    build that is named there.
    """
    made = folder / wanted.name
    if not made.is_file() or made.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        for torch in (line for line in wanted.read_text().splitlines() if line.startswith("torch==")):
            subprocess.run([*pip, torch], check=True)
        subprocess.run([*pip, "-r", str(wanted)], check=True)
        shutil.copy(wanted, made)
    return folder / "bin"
