"""The everyday sentences are well-formed, and the bundled card is the one that the template makes of the figures."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.paths import ROOT, SAMPLE
from training.__main__ import parse_arguments
from training.model.shape import read_config
from training.report.card import TEMPLATE, model_card
from training.report.figures import FilledEveryday, read_figures, to_json
from training.report.prompts import everyday_sentences, masked_texts

TOKENS = set((SAMPLE / "vocab.txt").read_text("utf-8").splitlines())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_forty_everyday_sentences_have_one_mask_and_an_answer_in_the_vocabulary(language: str) -> None:
    sentences = everyday_sentences()[language]
    assert len({one.text for one in sentences}) == 40
    for one in sentences:
        assert one.text.count("[MASK]") == 1
        assert TOKENS & set(one.accepted)
        assert any("\u4e00" <= character <= "\u9fff" for character in one.text) == (language == "zh")


def test_no_text_is_evaluated_twice() -> None:
    assert [text for text, count in Counter(masked_texts()).items() if count > 1] == []


@pytest.mark.parametrize(
    ("words", "verdict"), [(["a", "b", "c"], "first"), (["b", "c", "a"], "in five"), (["b", "c", "d"], "no")]
)
def test_the_verdict_says_where_the_right_word_stands(words: list[str], verdict: str) -> None:
    one = FilledEveryday(text="[MASK]", accepted=["a", "x"], guesses=[(word, 0.1) for word in words])
    assert one.verdict == verdict


def test_the_bundled_figures_are_those_of_the_fixed_sentences() -> None:
    path = SAMPLE / "figures.json"
    figures = read_figures(path)
    assert to_json(figures) == path.read_text("utf-8")
    for language, sentences in everyday_sentences().items():
        measured = [(one.text, one.accepted) for one in figures.everyday[language]]
        assert measured == [(one.text, one.accepted) for one in sentences]


def test_the_bundled_card_is_written_from_the_figures() -> None:
    card = model_card(shape=read_config(SAMPLE / "config.json"), figures=read_figures(SAMPLE / "figures.json"))
    assert card == (SAMPLE / "README.md").read_text("utf-8"), "run `python -m training --only card`"


def test_the_commands_of_the_card_parse_and_its_paths_exist() -> None:
    text = TEMPLATE.read_text("utf-8")
    data = "--corpus CORPUS --work WORK --tatoeba PAIRS.tsv.gz --similarity stsbenchmark.tsv.gz"
    assert f"`{data}`" in text
    commands = re.findall(r"^    python -m training (DATA (?:.*\\\n)*.*)", text, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        words = command.replace("DATA", data).replace("--until T", "--until 1e9").replace("\\\n", " ").split()
        assert parse_arguments(words).similarity == Path("stsbenchmark.tsv.gz")
    paths = re.findall(r"`(training/[\w./]+)`", text)
    assert len(paths) == 2
    assert [path for path in paths if not (ROOT / path).exists()] == []
