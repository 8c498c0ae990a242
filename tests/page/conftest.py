"""One browser and one service with the bundled model for all tests of the page."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.conftest import serve
from tests.export.goldens import Artifact
from tests.page.browser import MISSING, Shown, View, find_browser, show, start_browser

collect_ignore_glob = [] if find_browser() else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore_glob:
        terminalreporter.write_line(MISSING, red=True)


@pytest.fixture(scope="package")
def bundled(exported: Callable[..., Artifact]) -> Iterator[httpx.Client]:
    yield from serve(exported("sample").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(scope="package")
def browser() -> Iterator[object]:
    """Not of the session: while it runs, other tests cannot run an event loop in this thread."""
    with start_browser() as browser:
        yield browser


Open = Callable[..., Shown]


@pytest.fixture
def opened(browser: object, bundled: httpx.Client) -> Iterator[Open]:
    """Opens pages; at the end of the test none of them has reported an error."""
    pages = []

    def open_page(view: View | None = None, server: httpx.Client = bundled, **more: object) -> Shown:
        context = show(browser, str(server.base_url), view or View(), **more)  # type: ignore[arg-type]
        shown = context.__enter__()
        pages.append((context, shown))
        return shown

    yield open_page
    reports = [shown.reports for _, shown in pages]
    for context, _ in pages:
        context.__exit__(None, None, None)
    assert [one for one in reports if one] == []
