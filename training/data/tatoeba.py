"""Writes Tatoeba's translated sentences as corpus files of lone sentences, and as pairs for the teacher.

A line of the table is an English sentence, a tab, its Chinese translation; further columns are ignored. Lines that
occur in the evaluation are left out.
"""

import gzip
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from training.data.articles import is_held_out

LANGUAGES = ("en", "zh")
MASKED_WORD = r".{1,14}"  # what may stand in the place of [MASK], in letters
Pair = tuple[str, str]


def write_tatoeba(table: Path, *, corpus: Path, work: Path, reserved: Callable[[str], bool]) -> None:
    """Writes CORPUS/{en,zh}tatoeba.txt and, without held-out sentences, WORK/pairs-{en,zh}.txt.

    `reserved`: whether a sentence belongs to the evaluation.
    """
    work.mkdir(parents=True, exist_ok=True)
    kept = [pair for pair in read_pairs(table) if not any(reserved(text) for text in pair)]
    trained = [pair for pair in kept if not any(is_held_out([text]) for text in pair)]
    for column, language in enumerate(LANGUAGES):
        sentences = dict.fromkeys(pair[column] for pair in kept)
        (corpus / f"{language}tatoeba.txt").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
        lines = "".join(f"{pair[column]}\n" for pair in trained)
        (work / f"pairs-{language}.txt").write_text(lines, encoding="utf-8")


def held_out_pairs(table: Path, *, reserved: Callable[[str], bool]) -> list[Pair]:
    """The pairs that `write_tatoeba` leaves out because a sentence of them is held out."""
    pairs = [pair for pair in read_pairs(table) if any(is_held_out([text]) for text in pair)]
    return [pair for pair in pairs if not any(reserved(text) for text in pair)]


def read_pairs(table: Path) -> list[Pair]:
    with gzip.open(table, "rt", encoding="utf-8") as lines:
        columns = [line.split("\t") for line in lines]
    return [(row[0].strip(), row[1].strip()) for row in columns]


def make_reserved(*, masked: Iterable[str], whole: Iterable[str]) -> Callable[[str], bool]:
    """Whether a sentence equals one of `whole`, or one of `masked` with some word in the place of [MASK].

    Case, spaces and punctuation do not count.
    """
    judged = {letters(text) for text in whole}
    patterns = [
        re.compile(MASKED_WORD.join(re.escape(letters(part)) for part in text.split("[MASK]"))) for text in masked
    ]

    def reserved(text: str) -> bool:
        found = letters(text)
        return found in judged or any(pattern.fullmatch(found) for pattern in patterns)

    return reserved


def letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.lower())
