"""The page around its panels: language, theme, keyboard, errors, the key; its texts stay text, requests stay here."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Request, expect

from tests.conftest import Serve
from tests.export.goldens import Artifact
from tests.page.browser import View
from tests.page.conftest import Open
from tests.serving import running

MARKUP = "<img src=x onerror=alert(1)><b>bold</b> & \"quotes\" 'n' <script>alert(2)</script>"
KEY = "the-key-of-this-test"


@pytest.fixture(scope="module")
def with_key(serve: Serve, bert_artifact: Path) -> httpx.Client:
    return serve(bert_artifact, BERT_API_KEY=KEY, BERT_TOKEN_BUDGET="256")


READ = """() => [...document.querySelectorAll("[data-translated]")]
    .map((one) => one.getAttribute("aria-label") ?? (one.children.length ? "" : one.textContent))
    .filter((text) => !text.includes(" ms"))"""


def translated(page: Page) -> list[str]:
    """The page's own texts and names for screen readers, in the order of the document, without durations."""
    return list(page.evaluate(READ))


def test_the_language_changes_at_once_and_stays(opened: Open) -> None:
    shown = opened(View("en"), panel="pair")
    page = shown.page
    english = translated(page)
    page.locator("#language").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.locator("#pair-first")).to_have_value("我喜欢学习中文。")  # the example of the other language
    shown.assert_settled()
    expect(page.locator(".verdict > span").first).to_have_text("相接")
    chinese = translated(page)
    same = {one for one, other in zip(english, chinese, strict=True) if one == other}
    assert same <= {"", "curl", "Python"}
    page.reload()
    expect(page.locator("h1:visible")).to_have_text("下一句预测")
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    page.locator("#pair-first").fill("my own text")
    page.locator("#language").click()
    expect(page.locator("h1:visible")).to_have_text("Next sentence")
    expect(page.locator("#pair-first")).to_have_value("my own text")
    answered = f"(texts) => JSON.stringify(({READ})()) === JSON.stringify(texts)"
    page.wait_for_function(answered, arg=english)  # the texts around the answer to what was typed too


def test_the_theme_is_the_systems_until_it_is_chosen(opened: Open) -> None:
    shown = opened(View(scheme="dark"), panel="pair")
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
    shown = opened(panel="pair")
    page = shown.page
    names = []
    for _ in range(14):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.textContent || document.activeElement.id"))
    assert names[:5] == ["Skip to the content", "About this model", "API reference", "Dark", "中文"]
    assert names[5:11] == ["Fill the mask", "Surprise", "Next sentence", "Similarity", "Look inside", "Status"]
    assert names[11:] == ["pair-first", "pair-second", "Swap"]
    page.goto("about:blank")
    shown.open("pair")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#pair-first")).to_be_focused()


@pytest.mark.parametrize(("panel", "path"), [("pair", "/nsp"), ("surprise", "/score")])
def test_a_refused_request_shows_the_services_error(opened: Open, bundled: httpx.Client, panel: str, path: str) -> None:
    shown = opened(panel=panel)
    long = "word " * 600
    inputs = {"text": "a", "text_pair": long} if panel == "pair" else ["a", long]
    refused = bundled.post(path, json={"inputs": inputs})
    assert refused.status_code == 422
    error = refused.json()["error"]
    shown.page.locator(f"#{panel}-first").fill("a")
    shown.page.locator(f"#{panel}-second").fill(long)
    shown.page.locator(f"#{panel}-second").press("Enter")
    card = shown.page.get_by_role("alert").locator("visible=true")
    expect(card).to_contain_text("A text is too long for this model")
    expect(card).to_contain_text(error if isinstance(error, str) else error["message"])  # /score's shape is vLLM's
    expect(card).to_contain_text("422 too_long · request ")
    run, alert = (shown.page.locator(one).bounding_box() for one in (".primary:visible", ".error:visible"))
    assert run
    assert alert
    assert 0 < alert["y"] - run["y"] < 150
    assert {"422" in one for one in shown.reports} == {True}  # the browser's own report of the status
    shown.reports.clear()
    shown.assert_accessible()
    with shown.page.expect_request(f"**{path}") as request:
        shown.page.get_by_label("Cut long texts").locator("visible=true").check()
    assert request.value.post_data_json == {"inputs": inputs, "truncate": True}
    shown.assert_settled()
    shown.reports.clear()


def test_a_busy_service_is_asked_again_after_a_countdown(opened: Open) -> None:
    shown = opened(View("zh"))
    body = json.dumps({"error": "the queue is full", "code": "overloaded", "request_id": "abc"})
    headers = {"retry-after": "7", "content-type": "application/json"}
    refusals = [body, body]

    def answer(route: Any) -> None:
        if refusals:
            route.fulfill(status=429, headers=headers, body=refusals.pop())
        else:
            route.continue_()

    shown.page.route("**/nsp", answer)
    shown.page.clock.install()
    shown.open("pair")
    alert = shown.page.get_by_role("alert").locator("visible=true")
    expect(alert).to_contain_text("服务繁忙，7 秒后自动重试")
    expect(alert).to_contain_text("the queue is full")
    expect(alert).to_contain_text("请求 abc")
    shown.page.clock.run_for(3000)
    expect(alert).to_contain_text("服务繁忙，4 秒后自动重试")
    shown.page.clock.run_for(4000)
    expect(alert).to_contain_text("服务繁忙，7 秒后自动重试")
    shown.page.clock.run_for(7000)
    expect(shown.page.locator(".verdict:visible")).to_be_visible()
    expect(alert).to_have_count(0)
    shown.reports.clear()


def test_what_is_typed_is_answered_without_a_click_and_in_the_address(opened: Open) -> None:
    shown = opened(panel="mask")
    page = shown.page
    page.locator("#mask-text").fill("")
    page.locator("#mask-text").press_sequentially("He is reading a ___.")
    expect(page.locator(".candidate-word").first).to_have_text("book")
    expect(page.locator(".slot")).to_have_count(1)
    expect(page.locator(".request code:visible")).to_contain_text("reading a [MASK].")
    page.locator("#mask-count").select_option("10")
    expect(page.locator(".candidate")).to_have_count(10)
    other = opened()
    other.page.goto(page.url)
    expect(other.page.locator("#mask-text")).to_have_value("He is reading a ___.")
    expect(other.page.locator(".candidate")).to_have_count(10)
    expect(other.page.locator(".candidate-word").first).to_have_text("book")
    page.reload()
    expect(page.locator(".candidate")).to_have_count(10)


def test_a_request_that_was_overtaken_by_typing_is_ended(opened: Open) -> None:
    shown = opened(panel="pair")
    failed: list[str] = []
    shown.page.on("requestfailed", lambda request: failed.append(request.url))
    held: list[Any] = []
    shown.page.route("**/nsp", lambda route: route.continue_() if held else held.append(route))
    with shown.page.expect_request("**/nsp"):
        shown.page.locator("#pair-second").press_sequentially(" And")
    with shown.page.expect_event("requestfailed"):
        shown.page.locator("#pair-second").press_sequentially(" then")
    shown.assert_settled()
    assert {url.rsplit("/")[-1] for url in failed} == {"nsp"}


def test_the_answer_is_in_view_on_a_phone_after_run(opened: Open) -> None:
    shown = opened(View(width=390), panel="similar")
    expect(shown.page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=1)
    shown.page.locator("#similar-query").fill("It is snowing.")
    shown.page.locator(".primary:visible").click()
    expect(shown.page.locator(".neighbour").first).to_be_in_viewport()


def test_the_page_says_what_the_model_is(opened: Open, bundled: httpx.Client) -> None:
    shown = opened(panel="pair")
    shown.page.get_by_text("About this model").click()
    info, facts = bundled.get("/info").json(), shown.page.locator(".facts dd")
    expect(facts.first).to_have_text(str(info["limits"]["tokens"]))
    expect(facts.nth(2)).not_to_have_text("0")  # the largest error of the export
    expect(facts.nth(3)).to_have_text("cc-by-sa-4.0")
    expect(facts.nth(4)).to_have_text("en, zh")
    expect(shown.page.locator(".bundled")).to_contain_text("packbert serve NAME")


def test_the_page_of_another_model_is_one_choice_away(opened: Open, exported: Callable[..., Artifact]) -> None:
    models = {"sample": "sample", "roberta": "roberta", "org/roberta": "roberta"}
    named = " ".join(f"{name}={exported(model).root}" for name, model in models.items())
    with running({"BERT_MODELS": named}) as (_, server):
        shown = opened(server=server, panel="similar")
        choice = shown.page.locator("#model")
        for name in ("org/roberta", "roberta", "org/roberta", "sample"):
            choice.select_option(name)
            shown.page.wait_for_url(f"{shown.url}/models/{name}/#similar")
            expect(choice).to_have_value(name)
            shown.assert_settled()
        shown.assert_accessible()
        for name in ("roberta", "org/roberta"):
            shown.page.goto(f"{shown.url}/models/{name}")  # its links are relative to a path that ends with /
            expect(choice).to_have_value(name)
        shown.page.goto("about:blank")  # before its service ends


def test_a_service_that_cannot_be_reached(opened: Open) -> None:
    shown = opened(panel="pair")
    shown.page.context.set_offline(True)
    shown.page.locator(".primary:visible").click()
    expect(shown.page.get_by_role("alert").locator("visible=true")).to_contain_text("cannot be reached")
    shown.page.context.set_offline(False)
    shown.page.locator(".primary:visible").click()
    expect(shown.page.locator(".verdict:visible")).to_be_visible()
    shown.reports.clear()


def test_an_empty_text_is_asked_for_and_not_sent(opened: Open) -> None:
    shown = opened(panel="inside")
    sent: list[Request] = []
    shown.page.on("request", lambda request: sent.append(request) if request.method == "POST" else None)
    shown.page.locator("#inside-first").fill("  ")
    shown.page.locator("#inside-first").press("Enter")
    expect(shown.page.locator(".empty:visible")).to_have_text("Type a text first.")
    assert sent == []


def test_a_loading_model_is_waited_for(opened: Open) -> None:
    shown = opened()
    loading = {"json": {"error": "the model is loading", "code": "loading"}, "status": 503}
    answers: list[dict[str, Any]] = [loading, loading, {}]

    def answer(route: Any) -> None:
        found = answers.pop(0)
        route.fulfill(**found) if found else route.continue_()

    shown.page.route("**/info", answer)
    shown.page.clock.install()
    shown.page.goto(shown.url)
    for left in (2, 1):
        expect(shown.page.get_by_role("status")).to_have_text("The model is loading …")
        assert len(answers) == left
        shown.page.clock.run_for(1000)
    expect(shown.page.locator(".tabs a")).to_have_count(6)
    shown.reports.clear()  # the browser's own report of the status


def test_a_model_without_a_mask_token_has_its_panels(opened: Open, classifier: httpx.Client) -> None:
    shown = opened(server=classifier)
    info = classifier.get("/info").json() | {"mask_token": ""}
    shown.page.route("**/info", lambda route: route.fulfill(json=info))
    shown.page.goto(shown.url)
    expect(shown.page.locator(".tabs a")).to_have_text(["Labels", "Similarity", "Look inside", "Status"])
    shown.assert_settled()


def test_what_is_pressed_does_not_take_the_focus_with_it(opened: Open, with_key: httpx.Client) -> None:
    shown = opened()
    page, focus = shown.page, shown.page.locator(":focus")
    shown.open("mask")
    page.locator("#mask-text").fill("A cat has four legs and a long tail.")
    page.locator(".word", has_text="legs").press("Enter")
    expect(page.locator(".candidate-word").first).to_contain_text("legs")
    expect(focus).to_have_attribute("aria-label", "Mask 1: bring legs back")
    focus.press("Enter")
    expect(focus).to_have_attribute("aria-label", "Hide legs")
    focus.press("Enter")
    page.locator(".candidate").nth(1).press("Enter")
    expect(page.locator(".empty:visible")).to_have_text("Every mask is filled.")
    expect(focus).to_have_attribute("aria-label", re.compile("^Hide "))
    assert f"four {focus.inner_text()} and" in page.locator("#mask-text").input_value()
    page.locator("#mask-text").fill("A cat has four [MASK] and a long [MASK].")
    page.locator("#mask-joint").check()
    page.locator(".candidate.joint").first.press("Enter")
    expect(focus).to_have_attribute("aria-label", re.compile("^Hide "))
    shown.open("inside")
    tokenize = page.locator(".request button", has_text="/tokenize")
    expect(tokenize).to_be_visible()  # with /attention beside it: a hidden button takes no focus
    tokenize.press("Enter")
    expect(focus).to_have_text("/tokenize")

    shown = opened(server=with_key)
    shown.open("pair")
    shown.page.locator("#key").fill(KEY)
    shown.page.locator("#key").press("Enter")
    expect(shown.page.locator("#content")).to_be_focused()


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
    for panel in ("mask", "pair", "similar", "surprise", "inside", "status"):
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
