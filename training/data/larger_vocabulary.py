"""Adds whole words to a WordPiece vocabulary: names (countries, capitals, days, months), then frequent words.

The pieces that exist keep their ids, so that a trained model can be continued (`training/model/grow.py`).
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from training.data.articles import language_of
from training.data.vocabulary import training_paragraphs

EVERYDAY_WEIGHT = 300  # an occurrence in everyday sentences counts as so many in an article
NAMES = Path(__file__).with_name("names.txt")  # one word a line


def enlarge_vocabulary(tokenizer: Tokenizer, *, corpus: list[Path], size: int) -> Tokenizer:
    """The tokenizer with `size` pieces. Raises ValueError if the corpus has too few words for that."""
    content = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    for word in new_words(tokenizer, corpus=corpus, count=size - len(vocabulary)):
        vocabulary[word] = len(vocabulary)
    return Tokenizer.from_str(json.dumps(content))


def new_words(tokenizer: Tokenizer, *, corpus: list[Path], count: int) -> list[str]:
    """`count` words that are no pieces yet, names first, then by their frequency in English text."""
    known = tokenizer.get_vocab()
    names = [word for word in NAMES.read_text("utf-8").split() if word not in known]
    counted = count_words(tokenizer, corpus=corpus)
    frequent = sorted((word for word in counted if word not in known), key=lambda word: (-counted[word], word))
    words = list(dict.fromkeys([*names, *frequent]))
    if len(words) < count:
        raise ValueError(f"the corpus has {len(words)} words that are no pieces; {count} are needed")
    return words[:count]


def count_words(tokenizer: Tokenizer, *, corpus: list[Path]) -> Counter[str]:
    """Weighted occurrences of the words in the English files; a word is letters only."""
    counted: Counter[str] = Counter()
    for path in corpus:
        if language_of(path) == "en":
            weight = EVERYDAY_WEIGHT if "tatoeba" in path.name else 1
            for word, number in Counter(split_words(tokenizer, training_paragraphs(path))).items():
                counted[word] += number * weight
    return counted


def split_words(tokenizer: Tokenizer, paragraphs: Iterable[str]) -> Iterable[str]:
    for paragraph in paragraphs:
        normalized = tokenizer.normalizer.normalize_str(paragraph)
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized):
            if word.isascii() and word.isalpha():
                yield word
