"""The pooling that sentence-transformers stored with a checkpoint: the default for sentence vectors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_export.checkpoints.checkpoint import Checkpoint, read_json
from model_export.errors import ExportError

MODULES = "modules.json"
DEFAULT_POOLING = "cls"
# sentence-transformers' names -> our outputs
POOLINGS = {"cls_token": "cls", "cls": "cls", "mean_tokens": "mean", "mean": "mean"}
# ends of module types; a request chooses whether vectors are normalized
SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")


def pooling_of(checkpoint: Checkpoint) -> str:
    """One of POOLINGS' values. `checkpoint.assumed` reports what the checkpoint asks for and is not supported.

    Raises ExportError where the files of sentence-transformers are damaged.
    """
    modules = _modules(checkpoint.folder / MODULES)
    others = [kind for kind in modules.values() if not kind.endswith(SUPPORTED_MODULES)]
    if others:
        checkpoint.assumed["sentence vectors"] = f"those before {', '.join(others)}, which is not supported"
    folder = next((path for path, kind in modules.items() if kind.endswith("Pooling")), None)
    if folder is None:
        return DEFAULT_POOLING
    modes = _modes(read_json(checkpoint.folder / folder / "config.json"))
    if len(modes) == 1 and modes[0] in POOLINGS:
        return POOLINGS[modes[0]]
    stated = " and ".join(modes) or "nothing"
    reason = f"{folder}/config.json asks for {stated}, which is not supported"
    checkpoint.assumed["pooling"] = f"{DEFAULT_POOLING}: {reason}"
    return DEFAULT_POOLING


def _modules(path: Path) -> dict[str, str]:
    """Folder -> module type, in order; empty where sentence-transformers did not save the checkpoint."""
    if not path.is_file():
        return {}
    try:
        return {str(module["path"]): str(module["type"]) for module in json.loads(path.read_text("utf-8"))}
    except (OSError, ValueError, TypeError, KeyError) as error:
        expected = "sentence-transformers writes a list of modules with path and type"
        raise ExportError(f"{path} cannot be read: {error!r}; {expected}") from error


def _modes(config: Mapping[str, Any]) -> list[str]:
    """The pooling modes: one name or a list in new versions, a switch for each in old ones."""
    stated = config.get("pooling_mode")
    if stated:
        return [str(one) for one in stated] if isinstance(stated, list) else [str(stated)]
    switches = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    return [name.removeprefix("pooling_mode_") for name in switches]
