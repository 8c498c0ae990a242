"""The tables of the pages of benchmarks are those that `python -m benchmarks.tables` writes from the JSON beside it."""

from pathlib import Path

import pytest

from benchmarks.tables import MARKED, PAGES, TABLES, rewrite


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_changes_nothing(page: Path) -> None:
    text = page.read_text("utf-8")
    assert rewrite(text) == text


def test_every_table_has_its_marks_once() -> None:
    marks = [marked["name"] for page in PAGES for marked in MARKED.finditer(page.read_text("utf-8"))]
    assert sorted(marks) == sorted(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_a_cell_for_each_column(name: str) -> None:
    header, *rows = TABLES[name]()
    assert rows
    assert {len(row) for row in rows} == {len(header)}


def test_only_the_text_between_the_marks_changes() -> None:
    text = "before\n<!-- table start -->\n| old |\n<!-- /table -->\nafter\n"
    changed = rewrite(text)
    assert changed.startswith("before\n<!-- table start -->\n| artifact | packed weights |")
    assert changed.endswith("|\n<!-- /table -->\nafter\n")
    assert "| old |" not in changed
