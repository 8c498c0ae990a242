"""Links lead to files and headings, and paths that the pages name exist, so that a move cannot leave them behind."""

import re
from pathlib import Path

import pytest

from docs.tools.marks import DOCS, pages
from tests.paths import ROOT

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
