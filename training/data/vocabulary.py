"""Trains a lower-cased bilingual WordPiece vocabulary on corpus files.

Writes tokenizer.json, vocab.txt and tokenizer_config.json. Knows nothing of the network.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from training.data.articles import is_held_out, language_of, read_articles

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
VOCABULARY_SIZE = 16384
MIN_CHINESE_COUNT = 150  # covers 99.8 % of the Chinese characters of the corpus
ARTICLES_READ = {"en": 6000, "zh": 100_000}  # all Chinese, for its rare characters; English saturates early


def train_vocabulary(*, corpus: list[Path]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=frequent_chinese(corpus),
        limit_alphabet=7500,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    tokenizer.train_from_iterator(vocabulary_text(corpus), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def training_paragraphs(path: Path) -> Iterator[str]:
    articles = (article for article in read_articles(path) if not is_held_out(article))
    for article in islice(articles, ARTICLES_READ[language_of(path)]):
        yield from article


def vocabulary_text(corpus: list[Path]) -> Iterator[str]:
    for path in corpus:
        yield from training_paragraphs(path)


def frequent_chinese(corpus: list[Path]) -> list[str]:
    seen: Counter[str] = Counter()
    for path in corpus:
        if language_of(path) == "zh":
            for paragraph in training_paragraphs(path):
                seen.update(paragraph)
    return sorted(c for c, n in seen.items() if is_chinese(c) and n >= MIN_CHINESE_COUNT)


def is_chinese(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff" or "\u3400" <= character <= "\u4dbf"


def copy_vocabulary(model: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in VOCABULARY_FILES:
        shutil.copyfile(model / name, folder / name)


def write_vocabulary(tokenizer: Tokenizer, *, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces), encoding="utf-8")
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "tokenize_chinese_chars": True,
        "strip_accents": None,
        "model_max_length": 512,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
