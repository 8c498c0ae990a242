"""Measures a checkpoint folder, and writes the figures as JSON and as the measured half of the model card.

Reads the published fp16 file. Knows nothing of training.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from training.data.corpus import Source
from training.model.checkpoint_files import read_checkpoint
from training.model.model import Bert
from training.report import prompts
from training.report.measure import HeldOut, fill, measure_held_out, measure_similarity, probability_of_next

LANGUAGES = {"en": "English", "zh": "Chinese"}
TOP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    text: str
    guesses: list[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPair:
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
    pairs: list[JudgedPair]


def evaluate(folder: Path, *, sources: list[Source], similarity_table: Path | None, rounds: int) -> Figures:
    model = read_checkpoint(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Figures(
        held_out={
            language: measure_held_out(model, sources=[s for s in sources if s.language == language], rounds=rounds)
            for language in LANGUAGES
        },
        similarity=measure_similarity(model, tokenizer, table=similarity_table) if similarity_table else {},
        english=fill_all(model, tokenizer, prompts.ENGLISH),
        chinese=fill_all(model, tokenizer, prompts.CHINESE),
        extra=fill_all(model, tokenizer, prompts.EXTRA),
        pairs=[
            JudgedPair(first=a, second=b, is_next=probability_of_next(model, tokenizer, a, b)) for a, b in prompts.PAIRS
        ],
    )


def fill_all(model: Bert, tokenizer: Tokenizer, texts: tuple[str, ...]) -> list[Filled]:
    return [Filled(text=text, guesses=fill(model, tokenizer, text, count=TOP)) for text in texts]


def to_json(figures: Figures) -> str:
    return json.dumps(asdict(figures), ensure_ascii=False, indent=1) + "\n"


def to_markdown(figures: Figures) -> str:
    parts = [format_held_out(figures.held_out), format_similarity(figures.similarity)]
    for title, rows in (("English", figures.english), ("Chinese", figures.chinese), ("More", figures.extra)):
        parts.append(f"### `[MASK]`: {title}\n\n| text | top five |\n|---|---|\n" + "\n".join(map(format_filled, rows)))
    pairs = "\n".join(f"| {pair.first} | {pair.second} | {pair.is_next:.3f} |" for pair in figures.pairs)
    parts.append(f"### Next sentence\n\n| first | second | probability of next |\n|---|---|---|\n{pairs}")
    return "\n\n".join(part for part in parts if part) + "\n"


def format_held_out(by_language: dict[str, HeldOut]) -> str:
    def row(title: str, values: Any) -> str:
        return f"| {title} | " + " | ".join(values) + " |"

    columns = [by_language[language] for language in LANGUAGES]
    return "\n".join(
        [
            row("on held-out articles", LANGUAGES.values()),
            "|---|---|---|",
            row("masked tokens right, BERT's rule (80 / 10 / 10)", (f"{c.bert_rule:.1%}" for c in columns)),
            row("masked tokens right, all chosen tokens `[MASK]`", (f"{c.all_masked:.1%}" for c in columns)),
            row("tokens judged", (f"{c.masked_tokens:,}" for c in columns)),
            row("next sentence right (half random)", (f"{c.next_sentence:.1%}" for c in columns)),
            row("next sentence right, pairs of 64 tokens and more", (f"{c.next_sentence_long:.1%}" for c in columns)),
            row("pairs judged, all lengths", (f"{c.pairs:,}" for c in columns)),
        ]
    )


def format_similarity(by_pooling: dict[str, float]) -> str:
    if not by_pooling:
        return ""
    cells = "\n".join(f"| {pooling} | {value:.3f} |" for pooling, value in by_pooling.items())
    return f"| STS-B test, pooling | Spearman |\n|---|---|\n{cells}"


def format_filled(row: Filled) -> str:
    return f"| {row.text} | " + ", ".join(f"{piece} {chance:.2f}" for piece, chance in row.guesses) + " |"
