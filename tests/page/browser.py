"""The system's Chromium, and what the tests of the page ask of every page that it shows."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "tests/page has not run, it needs a browser: apt-get install chromium, or Google Chrome"
HEIGHT = 900
WAIT_MILLISECONDS = 20_000  # for what an assertion expects, on a busy machine
expect.set_options(timeout=WAIT_MILLISECONDS)


@dataclass(frozen=True)
class View:
    """A browser's language, width in pixels and colour scheme."""

    language: str = "en"
    width: int = 1280
    scheme: str = "light"

    def __str__(self) -> str:
        return f"{self.language}-{self.width}-{self.scheme}"

    def choose(self, english: str, chinese: str) -> str:
        return chinese if self.language == "zh" else english


VIEWS = [View("en", 390, "dark"), View("zh", 1280, "light")]  # other tests see English on a desk


@dataclass
class Shown:
    """A page of the service in a browser, and what the browser reported of it."""

    page: Page
    url: str
    reports: list[str] = field(default_factory=list)  # errors and warnings of the console, exceptions

    def open(self, panel: str) -> None:
        """Shows a panel, by the address; waits until it is there."""
        self.page.goto(f"{self.url}/#{panel}")
        expect(self.page.locator(f"#panel-{panel}")).to_be_visible()

    def assert_settled(self, locator: str = ".panel:not([hidden]) .result") -> None:
        """The last request of the panel has its answer."""
        expect(self.page.locator(locator).first).to_have_attribute("aria-busy", "false")

    def assert_accessible(self) -> None:
        """No rule of axe-core is violated, and nothing is wider than the window, when nothing is awaited any more."""
        expect(self.page.locator('.result[aria-busy="true"]')).to_have_count(0)  # it is paler than others
        found = Axe().run(self.page).response["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def find_browser() -> str | None:
    """The path of a Chromium."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Without a sandbox: it needs rights that containers lack, and only this service's page is opened."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def show(browser: Browser, url: str, view: View, **more: Any) -> Iterator[Shown]:
    """A page with a memory of its own."""
    context = browser.new_context(
        viewport={"width": view.width, "height": HEIGHT},
        locale={"en": "en-GB", "zh": "zh-CN"}[view.language],
        color_scheme=view.scheme,
        reduced_motion="reduce",
        **more,
    )
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    shown = Shown(page, url)
    page.on(
        "console",
        lambda message: shown.reports.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: shown.reports.append(str(error)))
    yield shown
    context.close()
