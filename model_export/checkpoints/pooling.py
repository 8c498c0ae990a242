"""What a checkpoint itself takes for a text's vector: the modules that sentence-transformers lists beside the encoder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_export.checkpoints.checkpoint import Checkpoint, read_json
from model_export.errors import ExportError

MODULES = "modules.json"
USUAL = "cls"  # where the checkpoint does not say
POOLINGS = {
    "cls_token": "cls",
    "cls": "cls",
    "mean_tokens": "mean",
    "mean": "mean",
}  # sentence-transformers' names -> our outputs
COMPUTED = (
    "Transformer",
    "Pooling",
    "Normalize",
)  # ends of module types; vectors to unit length are a request's choice


def pooling_of(checkpoint: Checkpoint) -> str:
    """A name out of POOLINGS' values. What the checkpoint wants and the service does not compute is told in `checkpoint.assumed`.

    Raises ExportError where the files that say it are damaged.
    """
    modules = _modules(checkpoint.folder / MODULES)
    others = [kind for kind in modules.values() if not kind.endswith(COMPUTED)]
    if others:
        checkpoint.assumed["sentence vectors"] = (
            f"those before {', '.join(others)}, which this exporter does not compute"
        )
    folder = next((path for path, kind in modules.items() if kind.endswith("Pooling")), None)
    if folder is None:
        return USUAL
    modes = _modes(read_json(checkpoint.folder / folder / "config.json"))
    if len(modes) == 1 and modes[0] in POOLINGS:
        return POOLINGS[modes[0]]
    said = " and ".join(modes) or "nothing"
    checkpoint.assumed["pooling"] = (
        f"{USUAL}: {folder}/config.json asks for {said}, which this exporter does not compute"
    )
    return USUAL


def _modules(path: Path) -> dict[str, str]:
    """Folder -> the module's type, in their order; nothing where sentence-transformers has not written the checkpoint."""
    if not path.is_file():
        return {}
    try:
        return {str(module["path"]): str(module["type"]) for module in json.loads(path.read_text("utf-8"))}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ExportError(
            f"{path} cannot be read: {error!r}; sentence-transformers writes a list of modules with path and type"
        ) from error


def _modes(config: Mapping[str, Any]) -> list[str]:
    """One name, or several switches of which one or more are on."""
    stated = config.get("pooling_mode")
    if stated:
        return [str(one) for one in stated] if isinstance(stated, list) else [str(stated)]
    return [
        name.removeprefix("pooling_mode_")
        for name, on in config.items()
        if name.startswith("pooling_mode_") and on is True
    ]
