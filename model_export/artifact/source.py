"""How a model is named, which files of a checkpoint decide its artifact, and how a file from elsewhere is opened."""

import errno
import io
import os
import re
import stat
from pathlib import Path

HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
MODULES = "modules.json"  # of sentence-transformers
TOKENIZER_FILES = ("tokenizer.json", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")
SENTENCE_FILES = (MODULES, "config_sentence_transformers.json", "[0-9]_*/*")
DESCRIPTION = ("*config.json", "README.md", *SENTENCE_FILES, *TOKENIZER_FILES)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")  # read only without safetensors
MAX_DESCRIPTION_BYTES = 64 * 2**20  # of a file beside the weights; the largest tokenizer.json in use has 33 MB
UNLIMITED_BYTES = 2**63


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that the exporter may read, sorted; other files of the folder do not count."""
    weights = WEIGHTS if any(folder.glob(WEIGHTS[0])) else PICKLES
    found = {path for pattern in (*DESCRIPTION, *weights) for path in folder.glob(pattern)}
    return sorted(path for path in found if path.exists() and not path.is_dir())


def most_bytes(path: Path) -> int:
    """How large a file of a checkpoint may be."""
    return UNLIMITED_BYTES if path.suffix in (".safetensors", ".bin") else MAX_DESCRIPTION_BYTES


def open_file(path: Path, most: int) -> io.BufferedReader:
    """Opens a file for reading. Raises OSError for anything but a regular file of at most `most` bytes.

    Does not wait: to open a FIFO would, and to read a device need not end.
    """
    file = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    state = os.fstat(file.fileno())
    fault = ""
    if not stat.S_ISREG(state.st_mode):
        fault = "it is not a regular file"
    elif state.st_size > most:
        fault = f"it has {state.st_size} bytes; at most {most} are allowed"
    if fault:
        file.close()
        raise OSError(errno.EINVAL, fault, str(path))
    return io.BufferedReader(file)


def read_file(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError."""
    with open_file(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # a file of /proc has no size
        raise OSError(errno.EINVAL, f"it has more than {most} bytes", str(path))
    return content
