"""The pictures of the page in README.md and in the guide about it, made from the page of an artifact.

python -m tests.page.picture ARTIFACT     writes them; a test looks at their size
"""

import sys
from pathlib import Path

from playwright.sync_api import expect

from benchmarks.harness.process import ServiceProcess
from tests.page.browser import Shown, View, show, start_browser
from tests.paths import ROOT

PICTURES = {View("en"): ROOT / "docs" / "page-en.png", View("zh", scheme="dark"): ROOT / "docs" / "page-zh.png"}
WIDTH, HEIGHT = 1280, 860
PANELS = ("mask", "surprise", "pair", "similar", "inside", "status")  # of the bundled model
FOLDER = ROOT / "docs" / "assets" / "page"


def take_picture(shown: Shown) -> bytes:
    """A PNG of the words for a mask, of WIDTH x HEIGHT pixels."""
    shown.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    shown.open("mask")
    expect(shown.page.locator(".candidate")).to_have_count(5)
    expect(shown.page.locator(".time:visible .legend li")).to_have_count(5)
    shown.page.locator("#mask-text").press("Enter")  # the first request of a page also waits for its files
    shown.assert_settled()
    return screenshot(shown)


def screenshot(shown: Shown) -> bytes:
    """With the address that README.md uses."""
    for code in shown.page.locator(".request code:visible").all():
        code.evaluate(
            "(element, url) => { element.textContent = element.textContent.replace(url, 'http://localhost:8080'); }",
            shown.url,
        )
    picture: bytes = shown.page.screenshot(animations="disabled", caret="hide")
    return picture


def take_panel(shown: Shown, panel: str) -> bytes:
    """A PNG of a panel with its first example answered, WIDTH pixels wide."""
    shown.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    shown.open(panel)
    expect(shown.page.locator(".panel:not([hidden]) [aria-busy=false]").first).to_be_attached()
    expect(shown.page.locator(".panel:not([hidden]) [aria-busy=true]")).to_have_count(0)
    expect(shown.page.locator(".request code:visible")).to_have_count(0 if panel == "status" else 1)
    shown.page.locator("h1:visible, .attention:visible").last.scroll_into_view_if_needed()
    return screenshot(shown)


def write_pictures(artifact: Path) -> None:
    with ServiceProcess({"BERT_MODEL": str(artifact)}) as process, start_browser() as browser:
        for view, path in PICTURES.items():
            with show(browser, process.url, view) as shown:
                path.write_bytes(take_picture(shown))
        FOLDER.mkdir(exist_ok=True)
        with show(browser, process.url, View()) as shown:
            for panel in PANELS:
                (FOLDER / f"{panel}.png").write_bytes(take_panel(shown, panel))


if __name__ == "__main__":
    write_pictures(Path(sys.argv[1]))
