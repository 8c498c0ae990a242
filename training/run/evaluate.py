"""A checkpoint folder in, its figures out: figures.json and the measured half of the model card.

Reads the fp16 file as it is shipped. Knows nothing of training.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from training.data import prompts
from training.data.corpus import Source
from training.data.names import read_checkpoint
from training.model.model import Bert
from training.run.measure import HeldOut, fill, held_out, is_next, similarity

LANGUAGES = {"en": "English", "zh": "Chinese"}
TOP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    text: str
    guesses: list[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    first: str
    second: str
    is_next: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    held_out: dict[str, HeldOut]
    similarity: dict[str, float]
    english: list[Filled]
    chinese: list[Filled]
    extra: list[Filled]
    pairs: list[Judged]


def evaluate(folder: Path, *, sources: list[Source], similarity_table: Path | None, rounds: int) -> Figures:
    model = read_checkpoint(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Figures(
        held_out={
            language: held_out(model, sources=[s for s in sources if s.language == language], rounds=rounds)
            for language in LANGUAGES
        },
        similarity=similarity(model, tokenizer, table=similarity_table) if similarity_table else {},
        english=filled(model, tokenizer, prompts.ENGLISH),
        chinese=filled(model, tokenizer, prompts.CHINESE),
        extra=filled(model, tokenizer, prompts.EXTRA),
        pairs=[Judged(first=a, second=b, is_next=is_next(model, tokenizer, a, b)) for a, b in prompts.PAIRS],
    )


def filled(model: Bert, tokenizer: Tokenizer, texts: tuple[str, ...]) -> list[Filled]:
    return [Filled(text=text, guesses=fill(model, tokenizer, text, count=TOP)) for text in texts]


def as_json(figures: Figures) -> str:
    return json.dumps(asdict(figures), ensure_ascii=False, indent=1) + "\n"


def as_markdown(figures: Figures) -> str:
    parts = [held_out_table(figures.held_out), similarity_table(figures.similarity)]
    for title, rows in (("English", figures.english), ("Chinese", figures.chinese), ("More", figures.extra)):
        parts.append(f"### `[MASK]`: {title}\n\n| text | top five |\n|---|---|\n" + "\n".join(map(filled_line, rows)))
    pairs = "\n".join(f"| {pair.first} | {pair.second} | {pair.is_next:.3f} |" for pair in figures.pairs)
    parts.append(f"### Next sentence\n\n| first | second | probability of next |\n|---|---|---|\n{pairs}")
    return "\n\n".join(part for part in parts if part) + "\n"


def held_out_table(by_language: dict[str, HeldOut]) -> str:
    def line(title: str, values: Any) -> str:
        return f"| {title} | " + " | ".join(values) + " |"

    columns = [by_language[language] for language in LANGUAGES]
    return "\n".join(
        [
            line("on held-out articles", LANGUAGES.values()),
            "|---|---|---|",
            line("masked tokens right, BERT's rule (80 / 10 / 10)", (f"{c.bert_rule:.1%}" for c in columns)),
            line("masked tokens right, all chosen tokens `[MASK]`", (f"{c.all_masked:.1%}" for c in columns)),
            line("tokens judged", (f"{c.masked_tokens:,}" for c in columns)),
            line("next sentence right (half random)", (f"{c.next_sentence:.1%}" for c in columns)),
            line("next sentence right, pairs of 64 tokens and more", (f"{c.next_sentence_long:.1%}" for c in columns)),
            line("pairs judged, all lengths", (f"{c.pairs:,}" for c in columns)),
        ]
    )


def similarity_table(by_pooling: dict[str, float]) -> str:
    if not by_pooling:
        return ""
    cells = "\n".join(f"| {pooling} | {value:.3f} |" for pooling, value in by_pooling.items())
    return f"| STS-B test, pooling | Spearman |\n|---|---|\n{cells}"


def filled_line(row: Filled) -> str:
    return f"| {row.text} | " + ", ".join(f"{piece} {chance:.2f}" for piece, chance in row.guesses) + " |"
