"""Checkpoints whose files state a fact in several places, and what the libraries read there (golden/stated.json)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.checkpoints import checkpoint
from tests.paths import GOLDEN

FILE = GOLDEN / "stated.json"
MODULES = "modules.json"  # the place that is no key: whether sentence-transformers reads its own files


def build(fact: Mapping[str, Any], values: Sequence[Any], folder: Path) -> Path:
    """The golden checkpoint `base` with these values at the `places`, file and path of keys; null: not stated."""
    base = fact["base"]
    checkpoint(base if (GOLDEN / base).exists() else f"multi-vectors/{base}", folder)
    for place, value in [*fact["common"].items(), *zip(fact["places"], values, strict=True)]:
        file, _, keys = place.partition(" ")
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if not keys:
            content = value
        else:
            *outer, last = keys.split(".")
            inner = content
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = value
            if value is None:
                del inner[last]
        if content is not None:
            path.write_text(json.dumps(content), "utf-8")
    return folder
