"""Corpus files become articles, sentences and arrays of tokens; one article in a hundred is held out."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from training.data.articles import (
    PER_ARTICLE,
    find_corpus,
    is_held_out,
    language_of,
    read_articles,
    sample_sentences,
    split_sentences,
)
from training.data.corpus import Source, open_sources
from training.data.prepare import prepare


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One day. Two days! Three?", ["One day.", "Two days!", "Three?"]),
        ("It costs 3.5 pounds. 20 are left.", ["It costs 3.5 pounds.", "20 are left."]),
        ("the end. no capital letter", ["the end. no capital letter"]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("他说：“好。”她走了。", ["他说：“好。”", "她走了。"]),
    ],
)
def test_a_paragraph_is_split_at_the_ends_of_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences([text]) == sentences


def test_the_corpus_is_text_files_of_articles_whose_names_say_their_language(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file with the suffix \.txt or \.txt\.zst"):
        find_corpus(tmp_path)
    for name in ("simplewiki_2018.txt", "zhwiki_2024.txt.zst", "notes.md"):
        (tmp_path / name).touch()
    found = find_corpus(tmp_path)
    assert [path.name for path in found] == ["simplewiki_2018.txt", "zhwiki_2024.txt.zst"]
    assert [language_of(path) for path in found] == ["en", "zh"]
    found[0].write_text("\n\nfirst\nsecond\n\n \nthird\n", encoding="utf-8")
    assert list(read_articles(found[0])) == [["first", "second"], ["third"]]


def test_about_one_article_in_a_hundred_is_held_out_by_its_text() -> None:
    held_out = [number for number in range(20_000) if is_held_out([f"article {number}", "text"])]
    assert 150 < len(held_out) < 250
    assert is_held_out([f"article {held_out[0]}", "text"])


def test_sampled_sentences_are_of_many_articles_and_none_is_held_out(tmp_path: Path) -> None:
    articles = [[f"Here is sentence {place} of article {number}." for place in range(9)] for number in range(300)]
    held_out = {sentence for article in articles if is_held_out(article) for sentence in article}
    path = tmp_path / "en.txt"
    path.write_text("\n\n".join("\n".join(article) for article in articles), encoding="utf-8")
    reserved = articles[5][0]
    found = sample_sentences([path], reserved=lambda text: text == reserved, count=10_000)
    assert held_out
    assert held_out.isdisjoint(found)
    assert reserved not in found
    by_article = [len(set(article) & set(found)) for article in articles if not is_held_out(article)]
    assert set(by_article) <= {PER_ARTICLE - 1, PER_ARTICLE}
    seven, again = (sample_sentences([path], reserved=lambda _: False, count=7) for _ in range(2))
    assert seven == again
    assert len(seven) == 7


def test_both_parts_together_hold_every_sentence_and_a_second_run_keeps_them(corpus: Path, work: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    prepare(corpus=corpus, work=work)
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()} == before
    tokenizer = Tokenizer.from_file(str(work / "vocabulary" / "tokenizer.json"))
    for path in find_corpus(corpus):
        for part in ("train", "held_out"):
            expected = [
                (number, sentence)
                for number, article in enumerate(read_articles(path))
                if is_held_out(article) == (part == "held_out")
                for sentence in split_sentences(article)
            ]
            (source,) = (
                one for one in open_sources(folder=work / "encoded", part=part) if one.name == path.name.split(".")[0]
            )
            assert source.article.tolist() == [number for number, _ in expected]
            assert source.starts[0] == 0
            assert source.starts[-1] == len(source.tokens)
            for (_, sentence), begin, end in zip(expected, source.starts[:-1], source.starts[1:], strict=True):
                assert source.tokens[begin:end].tolist() == tokenizer.encode(sentence, add_special_tokens=False).ids


def test_a_source_knows_its_language_and_stores_small_numbers(sources: list[Source]) -> None:
    assert [(source.name, source.language) for source in sources] == [("enwiki", "en"), ("zhwiki", "zh")]
    assert {source.tokens.dtype for source in sources} == {np.dtype(np.uint16)}
