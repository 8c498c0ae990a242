"""README.md and README.zh-CN.md open with the picture of the page that `make docs` takes."""

import struct

import pytest

from tests.page.browser import View
from tests.page.conftest import Open
from tests.page.picture import FOLDER, HEIGHT, PANELS, PICTURES, WIDTH, take_panel, take_picture
from tests.paths import ROOT

MAX_BYTES = 150_000


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height, from the header of a PNG."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


@pytest.mark.parametrize("view", PICTURES, ids=str)
def test_the_picture_is_the_one_that_the_page_gives(opened: Open, view: View) -> None:
    assert size_of(take_picture(opened(view))) == size_of(PICTURES[view].read_bytes()) == (WIDTH, HEIGHT)
    assert PICTURES[view].stat().st_size < MAX_BYTES


def test_each_panel_has_its_picture(opened: Open) -> None:
    shown = opened()
    for panel in PANELS:
        path = FOLDER / f"{panel}.png"
        assert size_of(take_panel(shown, panel)) == size_of(path.read_bytes()) == (WIDTH, HEIGHT)
        assert path.stat().st_size < MAX_BYTES


def test_each_readme_opens_with_the_picture_of_its_language() -> None:
    for page, path in zip(("README.md", "README.zh-CN.md"), PICTURES.values(), strict=True):
        assert str(path.relative_to(ROOT)) in (ROOT / page).read_text("utf-8").split("\n## ")[0]
