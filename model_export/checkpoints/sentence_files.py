"""The files of sentence-transformers around a checkpoint: whether it makes sparse vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_export.artifact.feeds.sparse import SECOND_LOG
from model_export.checkpoints.checkpoint import read_json
from model_export.errors import ExportError

TRANSFORMERS = ("Transformer", "MLMTransformer")  # since version 5.4, and before
ACTIVATIONS = ("relu", SECOND_LOG)  # log(1 + relu(logit)), log(1 + log(1 + relu(logit)))


def splade_activation(folder: Path, modules: Sequence[tuple[str, str]]) -> str:
    """One of ACTIVATIONS for a checkpoint of `modules` (folder and class) that are an encoder and SpladePooling; or "".

    Raises ExportError where the pooling is not computed here: by sum instead of by maximum.
    """
    kinds = [kind.rsplit(".", 1)[-1] for _, kind in modules]
    if len(kinds) != 2 or kinds[0] not in TRANSFORMERS or kinds[1] != "SpladePooling":
        return ""
    path = folder / modules[1][0] / "config.json"
    config = read_json(path)
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if strategy != "max" or activation not in ACTIVATIONS:
        raise ExportError(
            f"{path} pools by {strategy!r} of {activation!r}; only 'max' of {' or '.join(ACTIVATIONS)} is computed: "
            "remove modules.json to export the checkpoint without its sparse vectors"
        )
    return str(activation)


def optional_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty without the file."""
    return read_json(path) if path.is_file() else {}
