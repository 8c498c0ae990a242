"""The page around its panels: language, theme, keyboard, errors, the key; its texts stay text, requests stay here."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Request, expect

from tests.conftest import Serve
from tests.page.browser import View
from tests.page.conftest import Open

MARKUP = "<img src=x onerror=alert(1)><b>bold</b> & \"quotes\" 'n' <script>alert(2)</script>"
KEY = "the-key-of-this-test"


@pytest.fixture(scope="module")
def with_key(serve: Serve, bert_artifact: Path) -> httpx.Client:
    return serve(bert_artifact, BERT_API_KEY=KEY, BERT_TOKEN_BUDGET="256")


def translated(page: Page) -> list[str]:
    """The page's own texts and names for screen readers, in the order of the document, without durations."""
    read = "all => all.map((one) => one.getAttribute('aria-label') ?? (one.children.length ? '' : one.textContent))"
    return [one for one in page.locator("[data-translated]").evaluate_all(read) if " ms" not in one]


def test_the_language_changes_at_once_and_stays(opened: Open) -> None:
    shown = opened(View("en"))
    shown.open("pair")
    page = shown.page
    shown.assert_settled()
    english = translated(page)
    page.locator("#language").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.locator("#pair-first")).to_have_value("我喜欢机器学习。")  # the example of the other language
    shown.assert_settled()
    expect(page.locator(".verdict > span").first).to_have_text("相接")
    chinese = translated(page)
    same = {one for one, other in zip(english, chinese, strict=True) if one == other}
    assert same <= {"", "curl", "Python"}
    page.reload()
    expect(page.locator("h1:visible")).to_have_text("是否相接")
    page.locator("#pair-first").fill("my own text")
    page.locator("#language").click()
    expect(page.locator("h1:visible")).to_have_text("Do these follow")
    expect(page.locator("#pair-first")).to_have_value("my own text")
    assert translated(page) == english


def test_the_theme_is_the_systems_until_it_is_chosen(opened: Open) -> None:
    shown = opened(View(scheme="dark"))
    shown.open("pair")
    page = shown.page
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.locator("#theme", has_text="Light").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    expect(page.locator("#theme")).to_have_text("Dark")
    assert page.evaluate(ground) == light
    page.locator("#theme").click()
    assert page.evaluate(ground) == dark


def test_the_keyboard_reaches_everything_in_order(opened: Open) -> None:
    shown = opened()
    shown.open("pair")
    shown.assert_settled()
    page = shown.page
    names = []
    for _ in range(12):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.textContent || document.activeElement.id"))
    assert names[:4] == ["Skip to the content", "API reference", "Dark", "中文"]
    assert names[4:9] == ["Fill the mask", "Do these follow", "What is it like", "Look inside", "Status"]
    assert names[9:] == ["pair-first", "pair-second", "Swap"]
    page.goto("about:blank")
    shown.open("pair")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#pair-first")).to_be_focused()


def test_a_refused_request_shows_the_services_error(opened: Open, bundled: httpx.Client) -> None:
    shown = opened()
    shown.open("pair")
    shown.assert_settled()
    long = "word " * 600
    refused = bundled.post("/nsp", json={"inputs": {"text": "a", "text_pair": long}})
    assert refused.status_code == 422
    shown.page.locator("#pair-first").fill("a")
    shown.page.locator("#pair-second").fill(long)
    shown.page.locator("#pair-second").press("Enter")
    card = shown.page.get_by_role("alert").locator("visible=true")
    expect(card).to_contain_text("The service refused this request")
    expect(card).to_contain_text(refused.json()["error"])
    expect(card).to_contain_text("422 too_long")
    assert ["422" in one for one in shown.reports] == [True]  # the browser's own report of the status
    shown.reports.clear()
    shown.assert_accessible()


def test_a_busy_service_says_when_to_try_again(opened: Open) -> None:
    shown = opened(View("zh"))
    body = json.dumps({"error": "the queue is full", "code": "overloaded", "request_id": "abc"})
    headers = {"retry-after": "7", "content-type": "application/json"}
    shown.page.route("**/nsp", lambda route: route.fulfill(status=429, headers=headers, body=body))
    shown.open("pair")
    expect(shown.page.get_by_role("alert").locator("visible=true")).to_contain_text("服务繁忙，请在 7 秒后重试")
    expect(shown.page.get_by_role("alert").locator("visible=true")).to_contain_text("请求 abc")
    shown.reports.clear()


def test_a_service_that_cannot_be_reached(opened: Open) -> None:
    shown = opened()
    shown.open("pair")
    shown.assert_settled()
    shown.page.context.set_offline(True)
    shown.page.locator(".primary:visible").click()
    expect(shown.page.get_by_role("alert").locator("visible=true")).to_contain_text("cannot be reached")
    shown.page.context.set_offline(False)
    shown.page.locator(".primary:visible").click()
    expect(shown.page.locator(".verdict:visible")).to_be_visible()
    shown.reports.clear()


def test_an_empty_text_is_asked_for_and_not_sent(opened: Open) -> None:
    shown = opened()
    shown.open("inside")
    shown.assert_settled()
    sent: list[Request] = []
    shown.page.on("request", lambda request: sent.append(request))
    shown.page.locator("#inside-first").fill("  ")
    shown.page.locator("#inside-first").press("Enter")
    expect(shown.page.locator(".empty:visible")).to_have_text("Type a text first.")
    assert sent == []


def test_a_loading_model_is_waited_for(opened: Open) -> None:
    shown = opened()
    answers = [{"mask_token": None}, None]

    def answer(route: Any) -> None:
        found = answers.pop(0)
        route.continue_() if found is None else route.fulfill(json=found)

    shown.page.route("**/info", answer)
    shown.page.clock.install()
    shown.page.goto(shown.url)
    expect(shown.page.get_by_role("status")).to_have_text("The model is loading …")
    shown.page.clock.run_for(1000)
    expect(shown.page.locator(".tabs a")).to_have_count(5)


def test_texts_of_users_stay_text(opened: Open) -> None:
    shown = opened()
    page = shown.page
    page.on("dialog", lambda _: shown.reports.append("a script ran"))
    for panel in ("mask", "pair", "similar", "inside"):
        shown.open(panel)
        shown.assert_settled()
        for area in page.locator("textarea:visible").all():
            area.fill(f"{MARKUP} [MASK]\n{MARKUP}" if panel == "similar" else f"{MARKUP} [MASK]")
        page.locator(".primary:visible").click()
        expect(page.locator(f"#panel-{panel} .request code")).to_contain_text("<img src=x onerror=alert(1)>")
        shown.assert_settled()
        assert page.locator(".error").count() == 0
        assert page.locator("img, script:not([src]), b").count() == 0


def test_no_text_can_become_html_and_nothing_is_sent_elsewhere(opened: Open) -> None:
    shown = opened()
    requested: list[str] = []
    shown.page.on("request", lambda request: requested.append(request.url))
    for panel in ("mask", "pair", "similar", "inside", "status"):
        shown.open(panel)
    assert {httpx.URL(url).copy_with(raw_path=b"/") for url in requested} == {httpx.URL(shown.url + "/")}
    assert "TrustedHTML" in shown.page.evaluate(
        "(() => { try { document.body.innerHTML = '<b>'; } catch (error) { return error.message; } })()"
    )
    elsewhere = "fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')"
    assert shown.page.evaluate(elsewhere) == "refused"
    assert any("Content Security Policy" in one for one in shown.reports)
    shown.reports.clear()


def test_the_key_is_asked_for_used_and_kept_in_memory_only(opened: Open, with_key: httpx.Client) -> None:
    shown = opened(server=with_key)
    shown.open("pair")
    page, bar = shown.page, shown.page.locator(".key")
    expect(bar).to_contain_text("This service requires a key")
    shown.assert_accessible()
    assert page.locator(".request-filled:visible").count() == 0  # nothing was sent without it
    page.locator("#key").fill("a wrong one")
    page.locator("#key").press("Enter")
    expect(bar).to_contain_text("The service refused this key.")
    page.locator("#key").fill(KEY)
    page.locator("#key").press("Enter")
    expect(bar).to_be_hidden()
    expect(page.locator(".verdict:visible")).to_be_visible()
    code = page.locator(".request code:visible")
    expect(code).to_contain_text('-H "authorization: Bearer $KEY"')
    stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert KEY not in stored + page.content()
    page.reload()
    expect(bar).to_be_visible()
    assert ["401" in one for one in shown.reports] == [True]
    shown.reports.clear()
