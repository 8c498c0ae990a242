"""What a run has measured so far, so that a run in several parts goes on where the part before ended."""

import json
from pathlib import Path
from typing import Any

import packbert.service
from benchmarks.engine.contenders.arrangement import Values
from benchmarks.harness.checkpoints import BUILD, digest_of, exporter_digest


class Arrangements:
    """The arrangements that contenders found for each mix, so that later runs need not try them again."""

    def __init__(self, size: str, folder: Path = BUILD) -> None:
        self._path = folder / f"engine-arrangements-{size}.json"
        self._found: dict[str, Any] = json.loads(self._path.read_text()) if self._path.is_file() else {}

    def of(self, mix: str, contender: str) -> Values | None:
        """Those of an earlier run; None where there was none."""
        values: Values | None = self._found.get(mix, {}).get(contender)
        return values

    def add(self, mix: str, contender: str, values: Values | None) -> None:
        """Keeps them."""
        if values:
            self._found.setdefault(mix, {})[contender] = values
            self._path.write_text(json.dumps(self._found, indent=1))


class Progress:
    """Measured mixes of one run, in a file that another version of the sources or other options do not continue."""

    def __init__(self, name: str, *options: object, folder: Path = BUILD) -> None:
        self._path = folder / f"{name}-progress.json"
        self._run = [*map(str, options), exporter_digest(), digest_of(Path(str(packbert.service.__file__)).parent)]
        content = json.loads(self._path.read_text()) if self._path.is_file() else {}
        same = content if content.get("run") == self._run else {}
        self.measured: dict[str, Any] = same.get("measured", {})
        self.left_out: dict[str, str] = same.get("left_out", {})
        self.longest_seconds: float = same.get("longest_seconds", 0.0)

    def add(self, name: str, result: Any, left_out: dict[str, str], seconds: float) -> None:
        """Keeps the result of a mix that took so many seconds, loading not included."""
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.measured[name] = result
        self.left_out |= left_out
        kept = ("measured", "left_out", "longest_seconds")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"run": self._run} | {name: getattr(self, name) for name in kept}))

    def remove(self) -> None:
        """Removes the file: the run is complete."""
        self._path.unlink(missing_ok=True)
