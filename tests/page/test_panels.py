"""Each panel's main action against the real service, in both languages, on a desk and on a phone, light and dark."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import Serve
from tests.export.goldens import Artifact
from tests.page.browser import VIEWS, Shown, View, show
from tests.page.conftest import Open

LEAST_WEIGHT = 0.02  # of a line
TWO_POINTS = re.compile(r"^\S+ \S+$")
in_all_views = pytest.mark.parametrize("view", VIEWS, ids=str)
in_two_views = pytest.mark.parametrize("view", [View(), View("zh", 390, "dark")], ids=str)


@pytest.fixture(scope="module")
def pages(browser: Browser, bundled: httpx.Client) -> Iterator[dict[View, Shown]]:
    """One page for each view, which goes from panel to panel."""
    with ExitStack() as stack:
        yield {view: stack.enter_context(show(browser, str(bundled.base_url), view)) for view in VIEWS}


@pytest.fixture
def shown(pages: dict[View, Shown], view: View) -> Iterator[Shown]:
    """The page of a view; at the end of the test it has reported no error."""
    yield pages[view]
    assert pages[view].reports == []


@in_all_views
def test_words_are_hidden_filled_and_compared(shown: Shown, view: View) -> None:
    shown.open("mask")
    best, page = view.choose("doctor", "意"), shown.page
    expect(page.locator(".candidate-word").first).to_contain_text(best)
    expect(page.locator(".candidate .badge")).to_have_text(view.choose("hidden word", "原词"))
    shown.assert_accessible()

    page.locator(".word", has_text=view.choose("went", "书")).click()
    expect(page.locator(".slot")).to_have_count(2)
    expect(page.locator(".candidates .card")).to_have_count(2)
    page.locator(".slot").first.click()
    expect(page.locator(".slot")).to_have_count(1)
    shown.assert_settled()

    first = page.locator(".candidate").first
    word = page.locator(".candidate-word").first.evaluate("element => element.firstChild.textContent")
    first.click()
    expect(page.locator("#mask-text")).to_have_value(
        view.choose(f"She was ill, so she went to see a {word}.", f"这本书很有{word}思。")
    )
    expect(page.locator(".empty:visible")).to_have_text(view.choose("Every mask is filled.", "所有掩码都已填好。"))

    page.locator("#mask-text").fill(view.choose("A cat has four legs and a long [MASK].", "请把你的名[MASK]写在这里。"))
    page.locator("#mask-targets").fill(view.choose("river, tail", "河，字"))
    page.locator("#mask-targets").press("Enter")
    expect(page.locator(".candidate-word").first).to_have_text(view.choose("tail", "字"))
    expect(page.locator(".candidate")).to_have_count(2)


@in_all_views
def test_a_hidden_word_that_is_no_candidate_has_its_rank(shown: Shown, view: View, bundled: httpx.Client) -> None:
    shown.open("mask")
    page = shown.page
    page.locator("#mask-targets").fill("")
    page.locator("#mask-text").fill(view.choose("He sat on the old river.", "他坐在茶上。"))
    page.locator(".word", has_text=view.choose("river", "茶")).click()
    own = page.locator(".own")
    expect(own.locator(".badge")).to_have_text(re.compile(view.choose(r"rank \d+", r"第 \d+ 位")))
    text, word = page.locator("#mask-text").input_value(), view.choose("river", "茶")
    (scored,) = bundled.post("/fill-mask", json={"inputs": text, "targets": word}).json()
    share = float(own.locator(".figure").inner_text().rstrip(" %").lstrip("< "))
    assert share == pytest.approx(100 * scored["score"], abs=0.06)
    shown.assert_accessible()


@in_all_views
def test_all_masks_are_filled_together(shown: Shown, view: View, bundled: httpx.Client) -> None:
    shown.open("mask")
    page = shown.page
    text = view.choose("He was born in [MASK] and died in [MASK].", "他在[MASK]学学习历[MASK]。")
    page.locator("#mask-text").fill(text)
    page.locator("#mask-joint").check()
    expected = [one["sequence"] for one in bundled.post("/fill-mask", json={"inputs": text, "joint": True}).json()]
    expect(page.locator(".candidate.joint .candidate-word")).to_have_text(expected)
    shown.assert_accessible()
    page.locator(".candidate.joint").first.click()
    expect(page.locator("#mask-text")).to_have_value(expected[0])
    page.locator("#mask-joint").uncheck()


@in_all_views
def test_words_are_coloured_by_their_surprise(shown: Shown, view: View, bundled: httpx.Client) -> None:
    shown.open("surprise")
    page = shown.page
    texts = view.choose("He drinks a cup of sand.", "他喝一杯沙。"), view.choose("He drinks tea.", "他喝茶。")
    page.locator("#surprise-first").fill(texts[0])
    page.locator("#surprise-second").fill(texts[1])
    expect(page.locator("#panel-surprise .tagged")).to_have_text(list(texts))
    scored = bundled.post("/score", json={"inputs": list(texts)}).json()
    words = [len({token["word"] for token in one["tokens"]}) for one in scored]
    expect(page.locator("#panel-surprise .surprising")).to_have_count(sum(words))
    expect(page.locator("#panel-surprise .surprising[aria-pressed=true]")).to_have_count(2)
    expect(page.locator("#panel-surprise .candidates .bars")).to_have_count(2)  # what each text expected
    page.locator("#panel-surprise .surprising").first.click()
    expect(page.locator("#panel-surprise .result .bars").first).to_be_visible()
    shown.assert_accessible()


@in_all_views
def test_two_texts_follow_or_do_not(shown: Shown, view: View) -> None:
    shown.open("pair")
    yes, no = view.choose("It follows", "相接"), view.choose("It does not follow", "不相接")
    verdict = shown.page.locator(".verdict > span").first
    expect(verdict).to_have_text(yes)
    shown.assert_accessible()
    shown.page.locator("#pair-second").fill(
        view.choose("The company sells computers in forty countries.", "比赛因为下雨取消了。")
    )
    shown.page.locator("#pair-second").press("Enter")
    expect(verdict).to_have_text(no)
    before = shown.page.locator("#pair-second").input_value()
    shown.page.locator(".panel:not([hidden]) .quiet", has_text=view.choose("Swap", "交换")).click()
    expect(shown.page.locator("#pair-first")).to_have_value(before)
    shown.assert_settled()


@in_all_views
def test_the_nearest_text_is_first_and_all_are_on_the_map(shown: Shown, view: View) -> None:
    shown.open("similar")
    rows = shown.page.locator(".neighbour-text")
    expect(rows.first).to_have_text(view.choose("The weather is bad today.", "天气不好。"))
    expect(rows).to_have_count(7)
    expect(shown.page.locator(".map .mark")).to_have_count(8)
    shown.assert_accessible()
    shown.page.locator("#similar-lines").fill("狗在花园里玩。\nIt is very cold today.\n\n")
    shown.page.locator("#similar-query").fill("The dog is playing in the garden.")
    shown.page.locator("select").locator("visible=true").select_option("mean")
    expect(rows).to_have_text(["狗在花园里玩。", "It is very cold today."])
    expect(shown.page.locator(".request code").locator("visible=true")).to_contain_text('"pooling": "mean"')


@in_all_views
def test_tokens_have_their_piece_segment_position_and_id(shown: Shown, bundled: httpx.Client) -> None:
    shown.open("inside")
    pair = {"text": "unbelievable [MASK]", "text_pair": "我的狗"}
    shown.page.locator("#inside-first").fill(pair["text"])
    shown.page.locator("#inside-second").fill(pair["text_pair"])
    shown.page.locator("#inside-second").press("Enter")
    body = {"inputs": pair, "details": True, "mask": True}
    (tokens,) = bundled.post("/tokenize", json=body).json()
    expect(shown.page.locator(".ids td")).to_have_text([str(one["id"]) for one in tokens])
    assert shown.page.locator(".pieces td").all_text_contents() == [one["piece"] for one in tokens]
    segments = ["EB" if one["segment"] else "EA" for one in tokens]
    assert shown.page.locator(".segments td").all_text_contents() == segments
    assert shown.page.locator(".positions td").all_text_contents() == [f"E{i}" for i in range(len(tokens))]
    shown.assert_accessible()


@in_all_views
def test_the_status_is_drawn_and_moves(opened: Open, view: View, bundled: httpx.Client) -> None:
    bundled.post("/nsp", json={"inputs": {"text": "a", "text_pair": "b"}}).raise_for_status()
    shown = opened(view)
    shown.page.clock.install()
    shown.open("status")
    row = shown.page.locator(".latency", has=shown.page.locator("code", has_text="nsp"))
    expect(row.locator(".buckets .some").first).to_be_visible()
    line = shown.page.locator(".sparkline.rate .line")
    assert len(points_of(line.get_attribute("points"))) == 1
    with shown.page.expect_response("**/metrics"):
        shown.page.clock.run_for(2000)
    expect(line).to_have_attribute("points", TWO_POINTS)
    shown.assert_accessible()


def points_of(text: str | None) -> list[str]:
    return (text or "").split()


@in_two_views
def test_a_classifier_has_its_labels(opened: Open, view: View, classifier: httpx.Client) -> None:
    shown = opened(view, classifier)
    shown.page.goto(shown.url)
    expect(shown.page.locator(".tabs a")).to_have_text(
        ["Labels", "Similarity", "Look inside", "Status"]
        if view.language == "en"
        else ["分类", "语义相似度", "查看内部", "状态"]
    )
    shown.page.locator("#labels-text").fill("the cat")
    shown.page.locator("#labels-pair").fill("a dog")
    shown.page.locator("#labels-pair").press("Enter")
    body = {"inputs": {"text": "the cat", "text_pair": "a dog"}}
    labels = [one["label"] for one in classifier.post("/predict", json=body).json()]
    expect(shown.page.locator(".share > span:first-child").locator("visible=true")).to_have_text(labels)
    shown.assert_accessible()


@in_two_views
def test_a_tagger_colours_its_entities(opened: Open, view: View, tagger: httpx.Client) -> None:
    shown = opened(view, tagger)
    shown.page.goto(shown.url)
    text = "😀 My name is Clara."
    shown.page.locator("#tags-text").fill(text)
    shown.page.locator("#tags-text").press("Enter")
    tags = tagger.post("/tag", json={"inputs": text, "aggregation_strategy": "simple"}).json()
    assert tags
    marks = [text[one["start"] : one["end"]] + one["entity_group"] for one in tags]
    expect(shown.page.locator("mark")).to_have_text(marks)
    classes = {one["entity_group"] for one in tags}
    colours = shown.page.locator("mark").evaluate_all("marks => new Set(marks.map((one) => one.className)).size")
    assert colours == len(classes)
    shown.assert_accessible()


@in_two_views
def test_attention_is_drawn_between_the_tokens(opened: Open, view: View, bundled: httpx.Client) -> None:
    shown = opened(view)
    shown.open("inside")
    inputs = view.choose("The animal did not cross the street.", "他没有来。")
    shown.page.locator("#inside-first").fill(inputs)
    shown.page.locator("#inside-second").fill("")
    shown.page.locator("#inside-first").press("Enter")
    answer = bundled.post("/attention", json={"inputs": inputs, "layers": [0]}).json()
    shown.page.locator("#inside-layer").select_option("0")
    shown.page.locator(".heads button").first.click()  # the mean
    weights = np.array(answer["attention"][0])
    expect(shown.page.locator(".attention .from li")).to_have_text([piece["text"] for piece in answer["pieces"]])
    lines = shown.page.locator(".lines line")
    expect(lines).to_have_count(int((weights.mean(0) >= LEAST_WEIGHT).sum()))
    shown.page.locator(".heads button").nth(2).click()  # after the mean and the first one
    expect(lines).to_have_count(int((weights[1] >= LEAST_WEIGHT).sum()))
    shown.page.locator(".attention .from button").nth(2).click()
    expect(lines).to_have_count(int((weights[1][2] >= LEAST_WEIGHT).sum()))
    shown.assert_accessible()
    shown.page.locator("#inside-layer").select_option("rollout")
    expect(shown.page.locator(".heads")).to_have_count(0)
    code = shown.page.locator(".request code").locator("visible=true")
    expect(code).to_contain_text('"reduce": "rollout"')


@in_two_views
def test_attention_opens_on_a_case_that_shows_something(opened: Open, view: View) -> None:
    shown = opened(view)
    shown.open("inside")
    page = shown.page
    if view.language == "en":
        expect(page.locator(".attention .from [aria-pressed=true]")).to_have_text("it")
        expect(page.locator(".attention .to li", has_text="dog").locator(".figure")).to_have_text(re.compile(r"^\d\d"))
    page.locator(".attention .from li").nth(1).hover()
    expect(page.locator(".attention .to .figure", has_text="%").first).to_be_visible()
    page.locator(".attention .from button").nth(2).click()
    page.locator("h1:visible").hover()
    expect(page.locator(".attention .from [aria-pressed=true]")).to_have_count(1)
    shown.assert_accessible()


@pytest.fixture(scope="module")
def of_questions(serve: Serve, exported: Callable[..., Artifact]) -> httpx.Client:
    return serve(exported("bert-spans").root, BERT_TOKEN_BUDGET="256")


@pytest.fixture(scope="module")
def of_choices(serve: Serve, exported: Callable[..., Artifact]) -> httpx.Client:
    return serve(exported("bert-choices").root, BERT_TOKEN_BUDGET="256")


@in_two_views
def test_an_answer_is_marked_in_its_text(opened: Open, view: View, of_questions: httpx.Client) -> None:
    shown = opened(view, of_questions)
    shown.open("answer")
    context = "😀 My name is Clara and I live in Berkeley. " * 20
    shown.page.locator("#answer-question").fill("Where do I live?")
    shown.page.locator("#answer-context").fill(context)
    body = {"question": "Where do I live?", "context": context, "top_k": 3}
    answers = of_questions.post("/answer", json=body).json()
    best = answers[0]
    expect(shown.page.locator("mark")).to_have_text(context[best["start"] : best["end"]])
    expect(shown.page.locator("#panel-answer .share > span:first-child")).to_have_text(
        [one["answer"] for one in answers]
    )
    shown.assert_accessible()


@in_two_views
def test_choices_are_ranked(opened: Open, view: View, of_choices: httpx.Client) -> None:
    shown = opened(view, of_choices)
    shown.open("choose")
    shown.page.locator("#choose-prompt").fill("the cat")
    shown.page.locator("#choose-lines").fill("a dog\nthe mat\nit rains")
    body = {"prompt": "the cat", "choices": ["a dog", "the mat", "it rains"]}
    found = [one["choice"] for one in of_choices.post("/choose", json=body).json()]
    expect(shown.page.locator("#panel-choose .share > span:first-child")).to_have_text(found)
    shown.assert_accessible()


@in_two_views
def test_texts_are_reranked(opened: Open, view: View, cross_encoder: httpx.Client) -> None:
    shown = opened(view, cross_encoder)
    shown.open("rerank")
    shown.page.locator("#rerank-query").fill("the cat")
    shown.page.locator("#rerank-lines").fill("a dog\nthe mat\nit rains")
    texts = ["a dog", "the mat", "it rains"]
    ranked = cross_encoder.post("/rerank", json={"query": "the cat", "texts": texts}).json()
    names = shown.page.locator("#panel-rerank .share > span:first-child")
    expect(names).to_have_text([texts[one["index"]] for one in ranked])
    shown.assert_accessible()


@in_two_views
def test_labels_of_ones_own_are_scored(opened: Open, view: View, entailment: httpx.Client) -> None:
    shown = opened(view, entailment)
    shown.open("zero_shot")
    shown.page.locator("#zero_shot-text").fill("the cat sat on the mat")
    shown.page.locator("#zero_shot-labels").fill("animals, weather")
    body = {"inputs": "the cat sat on the mat", "candidate_labels": ["animals", "weather"]}
    labels = entailment.post("/predict", json=body).json()["labels"]
    expect(shown.page.locator("#panel-zero_shot .share > span:first-child")).to_have_text(labels)
    shown.assert_accessible()
