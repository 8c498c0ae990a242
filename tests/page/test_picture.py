"""The pictures of the page are those that it gives, and the numbers in their place are the answers of the model."""

import re
import struct
from pathlib import Path

import pytest

from tests.page.browser import Shown, View
from tests.page.conftest import Open
from tests.page.picture import FOLDER, HEIGHT, PANELS, PICTURES, WIDTH, take_panel, take_picture
from tests.paths import ROOT

MAX_BYTES = 150_000
ALTERNATIVE = re.compile(r"!\[([^]]*)\]\(([^)]*\.png)\)")
NUMBER = re.compile(r"([^\s，、：(（]+) (\d+(?:\.\d+)?)")  # after the word that has it
TOLERANCE = 0.02  # relative: processors differ in the sixth digit, models in the first


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height, from the header of a PNG."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


def texts_for(picture: Path) -> list[str]:
    """What the pages say in place of a picture, in both languages."""
    pages = [ROOT / "README.md", ROOT / "README.zh-CN.md", *(ROOT / "docs").rglob("*.md")]
    found = [(page, *named) for page in pages for named in ALTERNATIVE.findall(page.read_text("utf-8"))]
    return [text for page, text, path in found if (page.parent / path).resolve() == picture]


def assert_numbers(picture: Path, shown: Shown) -> None:
    """Each number that stands for a picture is the one that the page has beside the same word."""
    answers = shown.page.locator(".panel:not([hidden]) .work").inner_text()
    texts = texts_for(picture)
    assert texts
    for text in texts:
        numbers = NUMBER.findall(text)
        assert numbers, text
        for word, number in numbers:
            beside = re.findall(rf"{re.escape(word)}[^\d]{{0,20}}?(\d+(?:\.\d+)?)", answers)
            assert pytest.approx(float(number), rel=TOLERANCE) in list(map(float, beside)), (text, answers)


@pytest.mark.parametrize("view", PICTURES, ids=str)
def test_the_picture_is_the_one_that_the_page_gives(opened: Open, view: View) -> None:
    shown = opened(view)
    assert size_of(take_picture(shown)) == size_of(PICTURES[view].read_bytes()) == (WIDTH, HEIGHT)
    assert PICTURES[view].stat().st_size < MAX_BYTES
    assert_numbers(PICTURES[view], shown)


def test_each_panel_has_its_picture(opened: Open) -> None:
    shown = opened()
    for panel in PANELS:
        path = FOLDER / f"{panel}.png"
        assert size_of(take_panel(shown, panel)) == size_of(path.read_bytes()) == (WIDTH, HEIGHT)
        assert path.stat().st_size < MAX_BYTES
        if panel != "status":
            assert_numbers(path, shown)


def test_each_readme_opens_with_the_picture_of_its_language() -> None:
    for page, path in zip(("README.md", "README.zh-CN.md"), PICTURES.values(), strict=True):
        assert str(path.relative_to(ROOT)) in (ROOT / page).read_text("utf-8").split("\n## ")[0]
