"""The figures of a model as JSON, and as the measured parts of the model card. Needs no torch."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LANGUAGES = {"en": "English", "zh": "Chinese"}
Guesses = list[tuple[str, float]]  # token and probability


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Shares of right answers on articles that were left out of training."""

    masked_tokens: int
    bert_rule: float  # 15 % selected; of these 80 % [MASK], 10 % a random token, 10 % unchanged
    all_masked: float  # the same tokens selected, each of them [MASK]
    pairs: int
    next_sentence: float  # 0 without pairs
    long_pairs: int  # 64 tokens and more
    next_sentence_long: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    text: str
    guesses: Guesses


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledEveryday:
    text: str
    accepted: list[str]
    guesses: Guesses

    @property
    def verdict(self) -> str:
        """`first`, `in five` or `no`: where the first accepted token stands."""
        if self.guesses[0][0] in self.accepted:
            return "first"
        return "in five" if any(token in self.accepted for token, _ in self.guesses) else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPair:
    first: str
    second: str
    is_next: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    held_out: dict[str, HeldOut]
    similarity: dict[str, float]  # STS-B test, Spearman by pooling; empty if not measured
    similarity_dev: dict[str, float]
    unrelated: dict[str, float]  # mean cosine of unrelated texts, by pooling
    tatoeba: dict[str, HeldOut]  # lone sentences; empty if the corpus has none
    everyday: dict[str, list[FilledEveryday]]
    english: list[Filled]
    chinese: list[Filled]
    extra: list[Filled]
    pairs: list[JudgedPair]
    retrieval: dict[str, float]  # Chinese to English, by pooling; empty if not measured


def to_json(figures: Figures) -> str:
    return json.dumps(asdict(figures), ensure_ascii=False, indent=1) + "\n"


def read_figures(path: Path) -> Figures:
    """Raises TypeError if the file has other fields."""
    found = json.loads(path.read_text(encoding="utf-8"))
    for name in ("held_out", "tatoeba"):
        found[name] = {language: HeldOut(**values) for language, values in found[name].items()}
    found["everyday"] = {
        language: [FilledEveryday(**one) for one in answers] for language, answers in found["everyday"].items()
    }
    for name in ("english", "chinese", "extra"):
        found[name] = [Filled(**one) for one in found[name]]
    found["pairs"] = [JudgedPair(**one) for one in found["pairs"]]
    return Figures(**found)


def to_markdown(figures: Figures) -> str:
    parts = [format_held_out(figures.held_out), format_everyday(figures), format_similarity(figures)]
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


def format_everyday(figures: Figures) -> str:
    verdicts = [[one.verdict for one in figures.everyday[language]] for language in LANGUAGES]
    lines = [
        "| everyday sentences | English | Chinese |",
        "|---|---|---|",
        "| sentences | " + " | ".join(str(len(found)) for found in verdicts) + " |",
        "| right word first | " + " | ".join(str(found.count("first")) for found in verdicts) + " |",
        "| right word in five | " + " | ".join(str(len(found) - found.count("no")) for found in verdicts) + " |",
    ]
    if figures.tatoeba:
        shares = " | ".join(f"{figures.tatoeba[language].bert_rule:.1%}" for language in LANGUAGES)
        lines.append(f"| masked tokens right in held-out sentences of Tatoeba (80 / 10 / 10) | {shares} |")
    return "\n".join(lines)


def format_everyday_list(answers: list[FilledEveryday]) -> str:
    """Every sentence with its five likeliest words; the failures come first."""
    ordered = [one for verdict in ("no", "in five", "first") for one in answers if one.verdict == verdict]
    lines = [f"| {one.text} | {one.verdict} | {', '.join(token for token, _ in one.guesses)} |" for one in ordered]
    return "\n".join(["| text | right word | top five |", "|---|---|---|", *lines])


def format_similarity(figures: Figures) -> str:
    if not figures.similarity:
        return ""
    dev = figures.similarity_dev
    cells = "\n".join(
        f"| {pooling} | {test:.3f} | {dev[pooling]:.3f} |" for pooling, test in figures.similarity.items()
    )
    unrelated = ", ".join(f"{pooling} {cosine:.2f}" for pooling, cosine in figures.unrelated.items())
    retrieval = ", ".join(f"{pooling} {share:.1%}" for pooling, share in figures.retrieval.items())
    nearest = (
        f"\n\nThe translation is nearest, held-out Chinese sentences of Tatoeba: {retrieval}." if retrieval else ""
    )
    return (
        f"| Spearman, pooling | STS-B test | STS-B dev |\n|---|---|---|\n{cells}\n\n"
        f"Mean cosine of the vectors of unrelated sentences: {unrelated}.{nearest}"
    )


def format_filled(row: Filled) -> str:
    return f"| {row.text} | " + ", ".join(f"{piece} {chance:.2f}" for piece, chance in row.guesses) + " |"
