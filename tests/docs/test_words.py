"""The pages are short, the Chinese ones follow the English ones, and each term has one translation."""

import re
from pathlib import Path

import pytest

from docs.tools.answers import requests_of
from docs.tools.marks import DOCS, pages
from tests.docs.test_commands import PROGRAM, commands_of
from tests.paths import ROOT, SAMPLE

MOST_WORDS = {"README.md": 1000, "OPERATING.md": 1500, "benchmarks/README.md": 1000, "CHANGELOG.md": 500}
MOST_LINES = {"README.md": 160, "README.zh-CN.md": 160}
TRANSLATED = [DOCS / "index.md", DOCS / "start.md"]
TRANSLATED += [page for part in ("guides", "operate", "understand") for page in sorted((DOCS / part).glob("*.md"))]
PAIRS = [(page, page.with_suffix(".zh.md")) for page in TRANSLATED if not page.name.endswith(".zh.md")]
PAIRS.append((ROOT / "README.md", ROOT / "README.zh-CN.md"))
CONFIGURATION = re.compile(r"^ *```(?:nginx|haproxy|yaml)\n.*?```", re.MULTILINE | re.DOTALL)
SHORTENED = {"fleet.md"}  # in Chinese its conclusions alone
HEADING = re.compile(r"^(#+) ", re.MULTILINE)
TERM = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ", re.MULTILINE)
OTHER_WORDS = {  # term of the glossary -> other translations of it, which no Chinese page uses
    "token": ("令牌", "标记符", "记号", "词符"),
    "mask": ("遮罩", "掩模", "蒙版"),
    "sentence vector": ("句子向量", "语句向量", "句嵌入"),
    "next-sentence prediction": ("下一句判断", "下句预测", "后句预测"),
    "semantic similarity": ("语义相似性", "意义相似度"),
    "fill-mask": ("完形填空", "掩码填充", "填空"),
    "attention": ("关注度",),
    "padding": ("补齐", "衬垫"),
    "checkpoint": ("检查站", "存档点"),
    "artifact": ("工件", "产物"),
    "replica": ("复制品", "复本"),
    "batch": ("批量大小", "批处理大小"),
    "fine-tuning": ("精调",),
    "rerank": ("重新排序", "再排序"),
    "cross-encoder": ("交叉编码模型", "跨编码器"),
}
CHINESE = [*(chinese for _, chinese in PAIRS), SAMPLE / "README.zh-CN.md", DOCS / "reference" / "glossary.md"]
PAGE_TEXTS = ROOT / "service" / "http" / "page" / "static" / "texts" / "zh.js"


@pytest.mark.parametrize("name", MOST_WORDS)
def test_a_page_is_short_enough_to_be_read_to_its_end(name: str) -> None:
    assert len((ROOT / name).read_text("utf-8").split()) <= MOST_WORDS[name]


@pytest.mark.parametrize("name", MOST_LINES)
def test_the_readme_has_few_lines(name: str) -> None:
    assert (ROOT / name).read_text("utf-8").count("\n") <= MOST_LINES[name]


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda page: page.stem)
def test_a_chinese_page_has_the_english_sections_commands_and_programs(english: Path, chinese: Path) -> None:
    if english.name in SHORTENED:
        assert chinese.exists()
        return
    texts = [page.read_text("utf-8") for page in (english, chinese)]
    assert HEADING.findall(texts[1]) == HEADING.findall(texts[0])
    assert commands_of(chinese) == commands_of(english)
    assert PROGRAM.findall(texts[1]) == PROGRAM.findall(texts[0])
    assert CONFIGURATION.findall(texts[1]) == CONFIGURATION.findall(texts[0])
    asked = [[(one.model, one.command, one.answer) for one in requests_of(page)] for page in (english, chinese)]
    assert asked[1] == asked[0]


def test_each_term_of_the_glossary_has_one_translation() -> None:
    rows = TERM.findall((DOCS / "reference" / "glossary.md").read_text("utf-8"))[1:]  # without the header
    assert len(rows) > 20
    assert len({english for english, _ in rows}) == len({chinese for _, chinese in rows}) == len(rows)
    assert set(OTHER_WORDS) <= {english for english, _ in rows}


@pytest.mark.parametrize("page", [*CHINESE, PAGE_TEXTS], ids=lambda page: page.name)
def test_no_chinese_page_uses_another_translation_of_a_term(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [word for words in OTHER_WORDS.values() for word in words if word in text] == []


def test_links_of_a_chinese_page_lead_to_chinese_pages() -> None:
    english = {page.resolve() for page, _ in PAIRS}
    for page in CHINESE[:-1]:
        links = re.findall(r"(?<!!)\]\(([^)#\s]+\.md)", page.read_text("utf-8"))
        to_english = [link for link in links if (page.parent / link).resolve() in english]
        mirror = page.name.replace(".zh.md", ".md").replace("README.zh-CN.md", "README.md")
        assert [link for link in to_english if not link.endswith(mirror)] == [], page.name


def test_the_pages_avoid_sentences_that_readers_stumbled_over() -> None:
    worst = (
        "which is another thing",
        "decides the rest",
        "all runs together may have",
        "only if they differ, the files",
    )
    assert [(page.name, one) for page in pages() for one in worst if one in page.read_text("utf-8")] == []
