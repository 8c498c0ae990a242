"""Checks a tokenizer before it is written into an artifact; `python -m` runs the check's child process."""

import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from model_export.artifact.manifest import TOKENIZER, ModelBounds
from model_export.artifact.tokenizer_check import TokenizerCheck, check_in_child

MODULE = __name__


def why_unusable(tokenizer: Tokenizer, bounds: ModelBounds) -> str:
    """What is wrong with the tokenizer, as a sentence without subject; empty if nothing is."""
    with tempfile.TemporaryDirectory(prefix="bert-export-") as folder:
        path = Path(folder) / TOKENIZER
        tokenizer.save(str(path), pretty=False)
        return TokenizerCheck(MODULE, path, bounds).fault()


def load(path: str) -> Tokenizer:
    """The tokenizer as the service opens it: special tokens in a text are text."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return tokenizer


if __name__ == "__main__":
    check_in_child(load)
