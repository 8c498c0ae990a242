"""A checkpoint by its name on the Hugging Face hub: downloaded once, with a progress bar, into the hub's own cache."""

import importlib.util
import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from model_export.errors import ExportError

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ABOUT = (
    "*config.json",
    "README.md",
    "modules.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")  # only where the repository has nothing better


def is_hub_id(name: str) -> bool:
    return bool(ID.fullmatch(name)) and not Path(name).exists()


def download(name: str, revision: str | None) -> Path:
    """The folder of the checkpoint ORG/NAME. Raises ExportError where the hub cannot be reached or does not have it."""
    folder = _snapshot(name, revision, ABOUT + WEIGHTS)
    if any(folder.glob("*.safetensors")) or importlib.util.find_spec("torch") is None:
        return folder
    return _snapshot(name, revision, ABOUT + PICKLES)


def _snapshot(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        way = "download it where there is a network, and name the folder"
        raise ExportError(
            f"{name} is no folder here, and could not be downloaded from the hub: {reason}. Check the name and --revision, or {way}"
        ) from error
