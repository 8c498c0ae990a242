"""A corpus of a few hundred lines, generated from fixed seeds, and what `prepare` makes of it."""

import random
from pathlib import Path

import pytest

from training.data.corpus import Source, open_sources
from training.data.prepare import prepare

ARTICLES = 60  # in each file; with these seeds some of them are held out
ENGLISH = "the river runs past an old stone house where two small birds sing and wait for rain in early spring"
CHINESE = "我你他在家学校吃饭看书今天很好明天下雨我们去山上走"


def english_sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(ENGLISH.split(), k=draw.randint(4, 14))).capitalize() + "."


def chinese_sentence(draw: random.Random) -> str:
    return "".join(draw.choices(CHINESE, k=draw.randint(4, 18))) + "。"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one English and one Chinese file, one paragraph a line and a blank line between articles."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, sentence, joint in (("enwiki.txt", english_sentence, " "), ("zhwiki.txt", chinese_sentence, "")):
        draw = random.Random(name)
        articles = [
            "\n".join(joint.join(sentence(draw) for _ in range(draw.randint(2, 5))) for _ in range(draw.randint(2, 4)))
            for _ in range(ARTICLES)
        ]
        (folder / name).write_text("\n\n".join(articles) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def work(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the vocabulary and the encoded corpus."""
    folder = tmp_path_factory.mktemp("work")
    prepare(corpus=corpus, work=folder)
    return folder


@pytest.fixture(scope="session")
def sources(work: Path) -> list[Source]:
    """The English and the Chinese source of the training part."""
    return open_sources(folder=work / "encoded", part="train")
