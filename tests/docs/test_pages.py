"""Pages are short, the Chinese ones follow the English ones, and links and paths that a page names lead somewhere."""

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
LEVEL = re.compile(r"^(#+) ", re.MULTILINE)
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
DESIGN = sorted([ROOT / "ARCHITECTURE.md", *(DOCS / "design").glob("*.md"), *(DOCS / "contribute").glob("*.md")])
OTHERS = ("SECURITY.md", "CHANGELOG.md", "examples/README.md", "deploy/ray/README.md", "training/README.md")
BENCHMARKS = [ROOT / "benchmarks" / "README.md", *(ROOT / "benchmarks" / "results").glob("*.md")]
LINKED = sorted({*pages(), *DESIGN, *BENCHMARKS, *(ROOT / name for name in OTHERS)})
BASES = (ROOT, ROOT / "service", ROOT / "model_export", ROOT / "tests", ROOT / "service" / "http")
FOLDERS = {entry.name for base in BASES for entry in base.iterdir() if entry.is_dir()}
PATH = re.compile(r"`([a-z_]+/[\w/.-]*[\w/])(?:::\w+)?`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
NEW = {"service/tasks/distinct.py"}  # the file of the worked example


def test_pages_are_short_enough_to_be_read_to_their_end() -> None:
    assert {name for name, most in MOST_WORDS.items() if len((ROOT / name).read_text("utf-8").split()) > most} == set()
    assert {name for name, most in MOST_LINES.items() if (ROOT / name).read_text("utf-8").count("\n") > most} == set()


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda page: page.stem)
def test_a_chinese_page_has_the_english_sections_commands_and_programs(english: Path, chinese: Path) -> None:
    if english.name in SHORTENED:
        assert chinese.exists()
        return
    texts = [page.read_text("utf-8") for page in (english, chinese)]
    assert commands_of(chinese) == commands_of(english)
    for part in (LEVEL, PROGRAM, CONFIGURATION):
        assert part.findall(texts[1]) == part.findall(texts[0])
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


def exists(name: str) -> bool:
    return any((base / f"{name}{suffix}").exists() for base in BASES for suffix in ("", ".py", ".json"))


def anchors(page: Path) -> set[str]:
    """The headings as GitHub and the site make them into anchors."""
    headings = HEADING.findall(FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def leads_somewhere(link: str, page: Path) -> bool:
    """In the Chinese site too, where a page that is not translated links to the translation of another."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    translated = target.with_suffix(".zh.md")
    is_in_both = DOCS in page.parents and not page.with_suffix(".zh.md").exists() and translated.exists()
    reached = [target, translated] if is_in_both else [target]
    return target.exists() and (not anchor or all(anchor in anchors(one) for one in reached))


@pytest.mark.parametrize("page", DESIGN, ids=lambda page: page.stem)
def test_every_path_exists(page: Path) -> None:
    named = {name for name in PATH.findall(page.read_text("utf-8")) if name.split("/")[0] in FOLDERS}
    assert sorted(name for name in named - NEW if not exists(name)) == []


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not leads_somewhere(link, page)] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if not page.name.endswith(".zh.md")}
    assert listed == written
