"""How a model is named, and which files of a checkpoint decide its artifact. Reads no content."""

import re
from pathlib import Path

HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
MODULES = "modules.json"  # of sentence-transformers
TOKENIZER_FILES = ("tokenizer.json", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")
SENTENCE_FILES = (MODULES, "config_sentence_transformers.json", "[0-9]_*/*")
DESCRIPTION = ("*config.json", "README.md", *SENTENCE_FILES, *TOKENIZER_FILES)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")  # read only without safetensors


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that the exporter may read, sorted; other files of the folder do not count."""
    weights = WEIGHTS if any(folder.glob(WEIGHTS[0])) else PICKLES
    return sorted({path for pattern in (*DESCRIPTION, *weights) for path in folder.glob(pattern) if path.is_file()})
