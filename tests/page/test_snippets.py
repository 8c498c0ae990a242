"""The request as curl and Python: what a shell and Python make of them is what the page has sent."""

import json
import shlex
import types
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.page.browser import Shown
from tests.page.conftest import Open

AWKWARD = 'it\'s "quoted" $HOME `id` \\n \\ 中文 😀 </script> [MASK]\nsecond line'


@pytest.fixture
def sent(opened: Open) -> tuple[Shown, Any]:
    """A page after a request, and the body that it has sent."""
    shown = opened(panel="mask")
    shown.page.locator("#mask-text").fill(AWKWARD)
    with shown.page.expect_request("**/fill-mask") as request:
        shown.page.locator(".primary:visible").click()
    shown.assert_settled()
    return shown, json.loads(request.value.post_data or "")


def code(shown: Shown) -> str:
    found: str = shown.page.locator(".request code:visible").inner_text()
    return found


def test_the_command_for_a_shell_sends_the_same_request(sent: tuple[Shown, Any]) -> None:
    shown, body = sent
    assert body["inputs"] == AWKWARD
    command = shlex.split(code(shown).replace("\\\n", " "))
    assert command[:2] == ["curl", f"{shown.url}/fill-mask"]
    assert json.loads(command[command.index("-d") + 1]) == body


def test_the_python_code_gets_the_same_answer(sent: tuple[Shown, Any], bundled: httpx.Client) -> None:
    shown, body = sent
    shown.page.locator(".request button", has_text="Python").locator("visible=true").click()
    source = code(shown)
    assert source.startswith("import requests\n")
    library = types.SimpleNamespace(post=lambda url, json: bundled.post(url, json=json))
    names: dict[str, Any] = {"requests": library}
    exec(source.removeprefix("import requests\n"), names)
    answer = bundled.post("/fill-mask", json=body)
    assert names["answer"] == answer.json()
    shown.page.locator(".panel:not([hidden]) summary").click()
    expect(shown.page.locator(".request details pre").locator("visible=true")).to_have_text(answer.text[:4000])


def test_values_of_json_are_written_as_python_writes_them(opened: Open) -> None:
    shown = opened()
    shown.open("pair")
    value = {
        "a": [True, False, None, 1.5, -3, "x'\"\\\n\u2028😀"],
        "long": ["word " * 9] * 4,
        "empty": [{}, []],
    }
    write = "value => import('./page/request_view.js').then((found) => found.pythonLiteral(value, 4))"
    assert eval(shown.page.evaluate(write, value)) == value


def test_copying_puts_the_command_on_the_clipboard(opened: Open) -> None:
    shown = opened(permissions=["clipboard-read", "clipboard-write"], panel="pair")
    shown.page.locator(".request .quiet", has_text="Copy").locator("visible=true").click()
    expect(shown.page.get_by_text("Copied")).to_be_visible()
    assert shown.page.evaluate("navigator.clipboard.readText()") == code(shown)


def test_the_times_are_those_of_the_header(opened: Open) -> None:
    shown = opened()
    timing = "tokenize;dur=0.25, queue;dur=1.5, forward;dur=20.0, format;dur=0.125"

    def answer(route: Any) -> None:
        body = {"label": "is_next", "is_next": 0.75, "not_next": 0.25}
        route.fulfill(json=body, headers={"server-timing": timing, "content-type": "application/json"})

    shown.page.route("**/nsp", answer)
    shown.open("pair")
    figures = shown.page.locator(".time:visible .legend li")
    expect(figures).to_have_count(5)
    assert figures.all_inner_texts()[:4] == ["tokenize\n0.25 ms", "queue\n1.5 ms", "model\n20 ms", "format\n0.13 ms"]
