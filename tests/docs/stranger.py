"""`python -m tests.docs.stranger` runs what README and the page `start` print, in an empty folder, as a stranger would.

Each command is as printed, but for the address of the clone and the port; each answer is compared with the printed one.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.process import free_port
from docs.tools.answers import ANSWER, same
from docs.tools.marks import DOCS
from tests.paths import GOLDEN, README, ROOT

PAGES = (README, DOCS / "start.md")
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SERVERS = ("make serve", ".venv/bin/packbert serve ")  # they run until the next one
ELSEWHERE = {  # beginnings of commands that a stranger's machine has more for, and what tries them
    "docker ": "make test-images",
    "make images": "make test-images",
    "make test": ".ci/run",
    ".venv/bin/packbert serve BAAI/": "the tests of the model cache, with a hub of their own",
}
OWN_CHECKPOINT = "my-checkpoint"  # what the stranger has already
STEP_SECONDS = 900  # the first one installs


@dataclass(frozen=True, slots=True)
class Step:
    page: Path
    command: str
    printed: tuple[str, ...] = ()  # the lines below it
    is_program: bool = False  # in Python

    @property
    def runs(self) -> bool:
        return not self.command.startswith(tuple(ELSEWHERE))


def steps_of(page: Path) -> Iterator[Step]:
    for kind, block in BLOCK.findall(page.read_text("utf-8")):
        if kind == "python":
            yield Step(page, block, is_program=True)
            continue
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *printed = step.splitlines()
            yield Step(page, command, tuple(printed))


class Stranger:
    """Runs steps in a folder, which is empty at first; `with` ends the last server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._place = folder, folder
        self.port = free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("BERT_", "OTEL_", "PYTHON"))}
        self._environment = clean | {"HOME": str(folder), "BERT_PORT": str(self.port)}
        self._environment.pop("MAKEFLAGS", None)  # of the make that runs this
        (folder / ".gitconfig").write_text("[safe]\n\tdirectory = *\n", "utf-8")  # this checkout may be another user's
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, step: Step) -> None:
        """Raises AssertionError with what the command printed where it fails, or answers something else."""
        command = step.command.replace("localhost:8080", f"localhost:{self.port}")
        command = command.replace(" ADDRESS ", f" {ROOT.as_uri()} ")
        if step.is_program:
            (self._place / "program.py").write_text(command, "utf-8")
            command = ".venv/bin/python program.py"
        if command.startswith(SERVERS):
            self._serve(command)
            return
        done = subprocess.run(
            ["bash", "-c", f"{command}\ncode=$?\npwd > {self.folder}/place\nexit $code"],
            cwd=self._place,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=STEP_SECONDS,
        )
        where = f"{step.page.name}: {step.command}"
        assert done.returncode == 0, f"{where}\nended with {done.returncode}\n{done.stdout}{done.stderr}"
        self._place = Path((self.folder / "place").read_text("utf-8").strip())
        found = done.stdout.splitlines()
        assert not step.printed or len(found) == len(step.printed), f"{where}\nprinted {done.stdout}"
        for line, printed in zip(found, step.printed, strict=False):
            assert same(line, printed) if ANSWER.match(printed) else line == printed, f"{where}\nprinted {line}"
        if command.startswith("git clone "):
            (clone,) = (path for path in self._place.iterdir() if (path / ".git").is_dir())
            self._take_changes(clone)
            shutil.copytree(GOLDEN / "bert-labels", clone / OWN_CHECKPOINT)

    def _serve(self, command: str) -> None:
        """Until it prints that it serves."""
        self._stop()
        output = self.folder / "server.log"
        with output.open("wb") as file:
            self._server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._place,
                env=self._environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        end = time.monotonic() + STEP_SECONDS
        while " serving " not in (printed := output.read_text("utf-8")):
            assert self._server.poll() is None, f"{command}\nended with {self._server.returncode}\n{printed}"
            assert time.monotonic() < end, f"{command}\nserves nothing after {STEP_SECONDS} s\n{printed}"
            time.sleep(0.1)

    def _stop(self) -> None:
        """As Ctrl-C does: SIGINT for all processes of the terminal."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGINT)
            self._server.wait(STEP_SECONDS)
            self._server = None

    def _take_changes(self, clone: Path) -> None:
        """A clone has the last commit: what this working tree has beside it, and no longer has."""
        listed = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
        done = subprocess.run(listed, cwd=ROOT, env=self._environment, check=True, capture_output=True, text=True)
        for name in filter(None, done.stdout.split("\0")):
            if (ROOT / name).exists():
                (clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, clone / name)
            else:
                (clone / name).unlink(missing_ok=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Stranger(Path(folder)) as stranger:
        for page in PAGES:
            for step in steps_of(page):
                sys.stdout.write(f"{page.name}: {step.command}{'' if step.runs else ': not here'}\n")
                sys.stdout.flush()
                if step.runs:
                    stranger.run(step)


if __name__ == "__main__":
    main()
