"""A sentence-transformers folder says how its vectors are made of the hidden states; the service lets each request choose, so the user is told."""

import json
from pathlib import Path

from model_export.checkpoint import read_json
from model_export.errors import ExportError

SERVED = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean"}  # what sentence-transformers calls a pooling -> what /embed does
KNOWN = ("Transformer", "Pooling", "Normalize")  # modules whose work the service does


def trained_pooling(folder: Path) -> dict[str, str]:
    """For `assumed`: with which pooling the vectors of this model are its own. Empty where no modules.json names one."""
    try:
        modules = json.loads((folder / "modules.json").read_text("utf-8"))
        named = [(str(one["type"]).rsplit(".", 1)[-1], folder / str(one["path"])) for one in modules]
        poolings = [pooling for kind, path in named if kind == "Pooling" for pooling in _poolings(path)]
    except (OSError, ValueError, TypeError, KeyError, ExportError):
        return {}
    kinds = [kind for kind, _ in named]
    missing = [pooling for pooling in poolings if pooling not in SERVED] + [kind for kind in kinds if kind not in KNOWN]
    if not poolings:
        return {}
    if len(poolings) > 1 or missing:
        what = ", ".join(missing or poolings)
        return {"pooling": f"by request, cls if it does not say; modules.json makes the vectors with {what}, which no pooling of /embed does"}
    ask = f'"pooling": "{SERVED[poolings[0]]}"' + (', "normalize": true' if "Normalize" in kinds else "")
    return {"pooling": f"by request, cls if it does not say; modules.json makes the vectors as {ask} does"}


def _poolings(folder: Path) -> list[str]:
    config = read_json(folder / "config.json")
    stated = config.get("pooling_mode")
    return (
        [str(stated)]
        if stated
        else [key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    )
