"""The first stage: trains the vocabulary on a corpus and encodes the corpus with it. What exists already is kept."""

import logging
from pathlib import Path

from tokenizers import Tokenizer

from training.data.articles import find_corpus
from training.data.corpus import encode_once
from training.data.vocabulary import copy_vocabulary, train_vocabulary, write_vocabulary

log = logging.getLogger(__name__)


def prepare(*, corpus: Path, work: Path, start: Path | None = None) -> None:
    """Writes WORK/vocabulary and WORK/encoded from the files in the folder `corpus`.

    With `start`, the folder of a finished model, the vocabulary is that of the model. Raises ValueError if WORK has
    another one.
    """
    paths, vocabulary = find_corpus(corpus), work / "vocabulary"
    if start is not None:
        take_vocabulary(start, vocabulary)
    if not (vocabulary / "tokenizer_config.json").exists():
        write_vocabulary(train_vocabulary(corpus=paths), folder=vocabulary)
        log.info("vocabulary written")
    tokenizer = Tokenizer.from_file(str(vocabulary / "tokenizer.json"))
    encode_once(corpus=paths, tokenizer=tokenizer, folder=work / "encoded")


def take_vocabulary(start: Path, vocabulary: Path) -> None:
    """Copies the vocabulary of the model in `start`; raises ValueError if `vocabulary` holds another one."""
    if not vocabulary.exists():
        copy_vocabulary(start, vocabulary)
    if (start / "vocab.txt").read_bytes() != (vocabulary / "vocab.txt").read_bytes():
        raise ValueError(f"{vocabulary} is not the vocabulary of {start}: use another --work folder")
