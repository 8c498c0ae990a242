"""Downloads checkpoints by their hub id, ORG/NAME."""

import re
from pathlib import Path

from model_export.errors import ExportError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TOKENIZER = ("tokenizer.json", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")
SENTENCE = ("modules.json", "config_sentence_transformers.json", "[0-9]_*/*")  # of sentence-transformers
DESCRIPTION = ("*config.json", "README.md", *SENTENCE, *TOKENIZER)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")  # only without safetensors


def locate(name: str, revision: str | None) -> tuple[Path, str]:
    """The folder of a checkpoint, downloaded if `name` is a hub id, and its name; "" for a local folder.

    Raises ExportError where the hub cannot be reached or does not have it, or a revision of a folder is asked for.
    """
    if HUB_ID.fullmatch(name) and not Path(name).exists():
        return _download(name, revision), name
    if revision:
        raise ExportError(f"--revision needs a hub id (ORG/NAME), and {name} is not a hub id")
    return Path(name), ""


def _download(name: str, revision: str | None) -> Path:
    folder = _snapshot(name, revision, DESCRIPTION + WEIGHTS)
    if any(folder.glob("*.safetensors")):
        return folder
    return _snapshot(name, revision, DESCRIPTION + PICKLES)


def _snapshot(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download  # a fifth of the exporter's start, and most exports need no hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        solution = "check the name and --revision, or download it where there is a network, and name the folder"
        raise ExportError(
            f"{name} is not a local folder and could not be downloaded from the hub: {reason}; {solution}"
        ) from error
