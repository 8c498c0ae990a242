"""One browser and one service with the bundled model for all tests of the page."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from tests.conftest import Serve
from tests.export.goldens import Artifact
from tests.page.browser import MISSING, Shown, View, find_browser, show, start_browser

Open = Callable[..., Shown]
collect_ignore_glob = [] if find_browser() else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore_glob:
        terminalreporter.write_line(MISSING, red=True)


@pytest.fixture(scope="package")
def bundled(serve: Serve, exported: Callable[..., Artifact]) -> httpx.Client:
    return serve(exported("sample").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Not of the session: while it runs, other tests cannot run an event loop in this thread."""
    with start_browser() as browser:
        yield browser


@pytest.fixture
def opened(browser: Browser, bundled: httpx.Client) -> Iterator[Open]:
    """Opens a page of a service, by default of the bundled model, at a panel with its answer or nowhere: at the end of
    the test no page has reported an error."""
    pages: list[Shown] = []
    with ExitStack() as stack:

        def open_page(
            view: View | None = None, server: httpx.Client | None = None, panel: str = "", **more: Any
        ) -> Shown:
            url = str((server or bundled).base_url)
            pages.append(stack.enter_context(show(browser, url, view or View(), **more)))
            if panel:
                pages[-1].open(panel)
                pages[-1].assert_settled()
            return pages[-1]

        yield open_page
    assert [one.reports for one in pages if one.reports] == []
