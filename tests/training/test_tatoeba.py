"""Tatoeba's table becomes two corpus files of lone sentences, without the sentences of the evaluation."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from training.data.articles import is_held_out, read_articles
from training.data.batches import IGNORE, Packer
from training.data.corpus import open_sources
from training.data.prepare import prepare
from training.data.similarity_table import read_table
from training.data.tatoeba import make_reserved, write_tatoeba

RESERVED = make_reserved(masked=["The grass is [MASK].", "草是绿[MASK]的。"], whole=["A plane is taking off."])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The grass is green!", True),
        ("the grass is GREEN", True),
        ("The grass is", False),
        ("草是绿色的", True),
        ("A plane is taking off", True),
        ("A plane is taking off now.", False),
        ("I said: the grass is green.", False),
    ],
)
def test_a_sentence_of_the_evaluation_is_recognized(text: str, expected: bool) -> None:
    assert RESERVED(text) is expected


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of the corpus and of the work, from 301 pairs of which one is reserved and one is repeated."""
    corpus, work = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("work") / "new"
    lines = [f"This is sentence {number}.\t这是第{number}句。\tCC-BY\n" for number in range(299)]
    with gzip.open(corpus / "pairs.tsv.gz", "wt", encoding="utf-8") as table:
        table.writelines(["The grass is green.\t草很绿。\tCC-BY\n", lines[0], *lines])
    write_tatoeba(corpus / "pairs.tsv.gz", corpus=corpus, work=work, reserved=RESERVED)
    return corpus, work


def test_each_sentence_is_an_article_of_its_own(written: tuple[Path, Path]) -> None:
    corpus, _ = written
    for name, first in (("entatoeba", "This is sentence 0."), ("zhtatoeba", "这是第0句。")):
        articles = list(read_articles(corpus / f"{name}.txt"))
        assert len(articles) == 299
        assert articles[0] == [first]


def test_the_pairs_for_the_teacher_hold_nothing_that_is_held_out(written: tuple[Path, Path]) -> None:
    _, work = written
    english, chinese = ((work / f"pairs-{one}.txt").read_text("utf-8").splitlines() for one in ("en", "zh"))
    assert len(english) == len(chinese) < 300
    assert not any(is_held_out([text]) for text in (*english, *chinese))
    assert "The grass is green." not in english
    numbers = [text.removeprefix("This is sentence ").removesuffix(".") for text in english]
    assert chinese == [f"这是第{number}句。" for number in numbers]


def test_lone_sentences_have_no_next_sentence(written: tuple[Path, Path], tmp_path: Path) -> None:
    prepare(corpus=written[0], work=tmp_path)
    sources = open_sources(folder=tmp_path / "encoded", part="train")
    assert [source.lone_sentences for source in sources] == [True, True]
    rows = Packer(sources, shares=[1, 1], vocabulary_size=200).make_rows(count=8, length=64, seed=(1,))
    assert (rows.labels == IGNORE).all()
    assert not rows.segments.any()
    assert (rows.blocks.max(axis=1) > 0).all()


def test_the_table_of_similarity_is_read_without_quoting(tmp_path: Path) -> None:
    path = tmp_path / "stsbenchmark.tsv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as table:
        table.write('split\tscore\tsentence1\tsentence2\ntest\t4.5\t"A dog\tA cat\n')
    (record,) = read_table(path)
    assert record["sentence1"] == '"A dog'
    assert np.isclose(float(record["score"]), 4.5)
