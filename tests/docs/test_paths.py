"""The paths that the documents of design name exist, so that a move of files cannot leave them behind."""

import re
from pathlib import Path

import pytest

from tests.paths import ROOT

PAGES = sorted([ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BASES = (ROOT, ROOT / "service", ROOT / "model_export", ROOT / "tests", ROOT / "service" / "http")
FOLDERS = {entry.name for base in BASES for entry in base.iterdir() if entry.is_dir()}
PATH = re.compile(r"`([a-z_]+/[\w/.-]*[\w/])(?:::\w+)?`")


def exists(name: str) -> bool:
    return any((base / f"{name}{suffix}").exists() for base in BASES for suffix in ("", ".py", ".json"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_exists(page: Path) -> None:
    named = {name for name in PATH.findall(page.read_text("utf-8")) if name.split("/")[0] in FOLDERS}
    assert sorted(name for name in named if not exists(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
