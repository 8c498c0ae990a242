"""Each panel's main action against the real service: in English on a dark phone, in Chinese on a light desk."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.conftest import Serve
from tests.export.goldens import Artifact
from tests.page.browser import VIEWS, Shown, View, show
from tests.page.conftest import Open
from tests.paths import GOLDEN

Kinds = Callable[[str], httpx.Client]
LEAST_WEIGHT = 0.02  # of a line
TWO_POINTS = re.compile(r"^\S+ \S+$")
in_both_languages = pytest.mark.parametrize("view", VIEWS, ids=str)
RANKED: dict[str, tuple[str, dict[str, str], str, dict[str, Any]]] = {  # panel -> kind, what is typed, route, request
    "choose": (
        "bert-choices",
        {"prompt": "the cat", "lines": "a dog\nthe mat\nit rains"},
        "/choose",
        {"prompt": "the cat", "choices": ["a dog", "the mat", "it rains"]},
    ),
    "zero_shot": (
        "entailment",
        {"text": "the cat sat on the mat", "labels": "animals, weather"},
        "/predict",
        {"inputs": "the cat sat on the mat", "candidate_labels": ["animals", "weather"]},
    ),
}
KINDS = ["bundled", "classifier", "tagger", "entailment", "bert-choices", "bert-spans"]
KINDS += ["cross_encoder", "multi-vectors/stanford", "multi-vectors/bge-m3"]


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


@pytest.fixture(scope="module")
def kinds(request: pytest.FixtureRequest, exported: Callable[..., Artifact]) -> Kinds:
    """A service with a model of a kind: the name of a fixture, or of a golden checkpoint."""

    @cache
    def of_kind(name: str) -> httpx.Client:
        serve: Serve = request.getfixturevalue("serve")
        if (GOLDEN / name).is_dir():
            return serve(exported(name).root, BERT_TOKEN_BUDGET="256")
        found: httpx.Client = request.getfixturevalue(name)
        return found

    return of_kind


@in_both_languages
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
    expect(page.locator(".candidate-word")).to_have_text(
        [re.compile(one) for one in view.choose("tail river", "字 河").split()]
    )


def fill(shown: Shown, text: str, *, targets: str = "") -> None:
    """The text and the compared words, in a panel without an example."""
    shown.open("mask")
    shown.page.locator("#mask-targets").fill(targets)
    shown.page.locator("#mask-text").fill(text)


def badges(shown: Shown, word: str) -> Locator:
    """Those of a candidate."""
    return shown.page.locator(".candidate-word").get_by_text(re.compile(f"^{word}")).locator(".badge")


@in_both_languages
def test_hidden_and_compared_words_have_their_rank(shown: Shown, view: View, bundled: httpx.Client) -> None:
    page, word = shown.page, view.choose("sand", "沙")
    text = view.choose("He drinks a cup of {} every morning.", "他每天早上喝一杯{}。")
    fill(shown, text.format(word))
    page.locator(".word", has_text=word).click()
    ranked = bundled.post("/fill-mask", json={"inputs": text.format("[MASK]"), "top_k": 1000}).json()
    rank = [one["token_str"] for one in ranked].index(word) + 1
    assert rank > 200
    own = [view.choose("hidden word", "原词"), view.choose(f"rank {rank}", f"第 {rank} 位")]
    expect(badges(shown, word)).to_have_text(own)
    third = ranked[2]["token_str"].title()
    fill(shown, text.format("[MASK]"), targets=f"{word}, Unbelievable, {third}")
    expect(page.locator(".candidate .badge")).to_have_text(
        [view.choose("rank 3", "第 3 位"), *own, view.choose("after rank 1,000", "第 1,000 位以后")]
    )
    expect(badges(shown, third)).to_have_count(1)  # as it was written
    shown.assert_accessible()


def test_a_word_of_several_pieces_is_not_on_the_scale_of_others(opened: Open, bundled: httpx.Client) -> None:
    shown, text = opened(), "I {} know what to say."
    (scored,) = bundled.post("/fill-mask", json={"inputs": text.format("[MASK]"), "targets": "don't"}).json()
    joint = bundled.post("/fill-mask", json={"inputs": text.format("[MASK]" * 3), "joint": True, "top_k": 10}).json()
    pieces = [one["pieces"] for one in joint]
    rank = pieces.index(scored["pieces"]) + 1
    share = 100 * math.exp(scored["log_probability"])
    fill(shown, text.format("don't"))
    shown.page.locator(".word", has_text="don't").click()
    expect(badges(shown, "don't")).to_have_text(["hidden word", f"rank {rank}"])
    for targets, others in (("", 5), ("always, don't", 1)):
        fill(shown, text.format("[MASK]"), targets=targets)
        expect(badges(shown, "don't").last).to_have_text(f"rank {rank}")
        row = shown.page.locator(".candidate").last
        expect(row.locator(".figure")).to_have_text(f"{share:.1f}".removesuffix(".0") + " % if the place has 3 pieces")
        expect(row.locator(".bar")).to_have_count(0)
        expect(shown.page.locator(".candidate .bar")).to_have_count(others)


@in_both_languages
def test_a_candidate_of_another_script_is_behind_a_switch(opened: Open, view: View) -> None:
    shown = opened(view)
    words = view.choose("tea, 茶, coffee", "茶, tea, 水").split(", ")
    found = [{"score": 0.2, "token": n, "token_str": word, "sequence": word} for n, word in enumerate(words)]
    shown.page.route(
        "**/fill-mask", lambda route: route.fulfill(json=[] if "targets" in route.request.post_data else found)
    )
    for panel in ("mask", "surprise"):
        shown.open(panel)
        lists = shown.page.locator(f"#panel-{panel} .card div:has(> .bars)")
        expect(lists.first.locator("> .bars > li")).to_have_count(2)
        expect(lists.first.get_by_text(words[1], exact=True)).to_be_hidden()
        lists.first.locator("summary").click()
        expect(lists.first.get_by_text(words[1], exact=True)).to_be_visible()
        shown.assert_accessible()


@in_both_languages
def test_all_masks_are_filled_together(shown: Shown, view: View, bundled: httpx.Client) -> None:
    page = shown.page
    parts = view.choose(
        "He was born in |[MASK] [MASK]| and died in |[MASK]|.", "他在|[MASK][MASK]|学习历|[MASK]|。"
    ).split("|")
    fill(shown, "".join(parts))
    page.locator("#mask-joint").check()
    found = bundled.post("/fill-mask", json={"inputs": "".join(parts), "joint": True}).json()
    texts = [[text.replace(" ", view.choose(" ", "")) for text in one["texts"]] for one in found]
    expected = [parts[0] + first + parts[2] + second + parts[4] for first, second in texts]
    expect(page.locator(".candidate.joint .candidate-word")).to_have_text(expected)
    shown.assert_accessible()
    page.locator(".candidate.joint").first.click()
    expect(page.locator("#mask-text")).to_have_value(expected[0])
    page.locator("#mask-joint").uncheck()


@in_both_languages
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
    expect(page.locator("#panel-surprise .candidates .badge")).to_have_count(2)  # what each text expected
    page.locator("#panel-surprise .surprising").first.click()
    expect(page.locator("#panel-surprise .result .bars").first).to_be_visible()
    shown.assert_accessible()


def test_what_was_expected_for_a_word_of_several_pieces(opened: Open, bundled: httpx.Client) -> None:
    shown = opened(panel="surprise")
    shown.page.locator("#surprise-first").fill("A hairdresser came.")
    shown.page.locator("#surprise-second").fill("")
    body = {"inputs": "A [MASK][MASK][MASK][MASK] came.", "joint": True}
    texts = [text for one in bundled.post("/fill-mask", json=body).json() for text in one["texts"]]
    shown.page.locator(".surprising", has_text="hairdresser").click()
    expect(shown.page.locator("#panel-surprise .card .bars li")).to_have_text(texts)
    expect(shown.page.locator("#panel-surprise .card .badge")).to_have_text("after rank 10")


@in_both_languages
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


@in_both_languages
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


@in_both_languages
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


@in_both_languages
def test_the_status_is_drawn_and_moves(opened: Open, view: View, bundled: httpx.Client) -> None:
    bundled.post("/nsp", json={"inputs": {"text": "a", "text_pair": "b"}}).raise_for_status()
    shown = opened(view)
    shown.page.clock.install()
    shown.open("status")
    row = shown.page.locator(".latency", has=shown.page.locator("code", has_text="nsp"))
    expect(row.locator(".buckets .some").first).to_be_visible()
    line = shown.page.locator(".sparkline.rate .line")
    assert len((line.get_attribute("points") or "").split()) == 1
    with shown.page.expect_response("**/metrics"):
        shown.page.clock.run_for(2000)
    expect(line).to_have_attribute("points", TWO_POINTS)
    shown.assert_accessible()


@in_both_languages
def test_a_classifier_has_its_labels(opened: Open, view: View, classifier: httpx.Client) -> None:
    shown = opened(view, classifier)
    shown.page.goto(shown.url)
    tabs = view.choose("Labels Similarity Look-inside Status", "分类 语义相似度 查看内部 状态").split()
    expect(shown.page.locator(".tabs a")).to_have_text([one.replace("-", " ") for one in tabs])
    shown.page.locator("#labels-text").fill("the cat")
    shown.page.locator("#labels-pair").fill("a dog")
    shown.page.locator("#labels-pair").press("Enter")
    body = {"inputs": {"text": "the cat", "text_pair": "a dog"}}
    labels = [one["label"] for one in classifier.post("/predict", json=body).json()]
    expect(shown.page.locator(".share > span:first-child").locator("visible=true")).to_have_text(labels)
    shown.assert_accessible()


@in_both_languages
def test_a_tagger_colours_its_entities(opened: Open, view: View, tagger: httpx.Client) -> None:
    shown = opened(view, tagger)
    shown.page.goto(shown.url)
    text = "😀 My name is Clara."
    shown.page.locator("#tags-text").fill(text)
    shown.page.locator("#tags-text").press("Enter")
    tags = tagger.post("/tag", json={"inputs": text, "aggregation_strategy": "simple"}).json()
    assert tags
    words = [text[one["start"] : one["end"]] for one in tags]
    marks = [word + one["entity_group"] for word, one in zip(words, tags, strict=True)]
    expect(shown.page.locator("mark")).to_have_text(marks)
    expect(shown.page.locator(".entity > span:first-child")).to_have_text(
        [f"{word} {one['entity_group']}" for word, one in zip(words, tags, strict=True)]
    )
    classes = {one["entity_group"] for one in tags}
    colours = shown.page.locator("mark").evaluate_all("marks => new Set(marks.map((one) => one.className)).size")
    assert colours == len(classes)
    shown.assert_accessible()


@in_both_languages
def test_attention_is_drawn_between_the_tokens(opened: Open, view: View, bundled: httpx.Client) -> None:
    shown = opened(view, panel="inside")
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


@in_both_languages
def test_each_example_of_attention_shows_something(opened: Open, view: View) -> None:
    shown = opened(view, panel="inside")
    page = shown.page
    examples = page.locator("#panel-inside .example")
    expect(examples).to_have_count(4 if view.language == "en" else 3)
    for example in examples.all():
        with page.expect_response("**/attention"):
            example.click()
        shown.assert_settled(".result:has(.attention)")
        held = page.locator(".attention .from button").evaluate_all(
            "all => all.findIndex((one) => one.getAttribute('aria-pressed') === 'true')"
        )
        read = page.locator(".attention .to li").all_inner_texts()
        weights = [float(text.split("\n")[1].rstrip(" %")) if "%" in text else 0 for text in read]
        most = weights.index(max(weights))
        assert weights[most] > 30
        assert held >= 0
        assert most != held
        assert not read[most].startswith(("[CLS]", "[SEP]"))
    page.locator(".attention .from li").nth(1).hover()
    expect(page.locator(".attention .to .figure", has_text="%").first).to_be_visible()
    page.locator(".attention .from button").nth(2).click()
    page.locator("h1:visible").hover()
    expect(page.locator(".attention .from [aria-pressed=true]")).to_have_count(1)
    shown.assert_accessible()


@in_both_languages
def test_an_answer_is_marked_in_its_text(opened: Open, view: View, kinds: Kinds) -> None:
    of_questions = kinds("bert-spans")
    shown = opened(view, of_questions, panel="answer")
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


@in_both_languages
@pytest.mark.parametrize("panel", RANKED)
def test_choices_and_labels_of_ones_own_are_ranked(opened: Open, view: View, panel: str, kinds: Kinds) -> None:
    kind, typed, route, body = RANKED[panel]
    server = kinds(kind)
    shown = opened(view, server, panel=panel)
    for field, text in typed.items():
        shown.page.locator(f"#{panel}-{field}").fill(text)
    answer = server.post(route, json=body).json()
    ranked = answer["labels"] if panel == "zero_shot" else [one["choice"] for one in answer]
    expect(shown.page.locator(f"#panel-{panel} .share > span:first-child")).to_have_text(ranked)
    shown.assert_accessible()


@pytest.mark.parametrize("kind", ["cross_encoder", "multi-vectors/stanford", "multi-vectors/bge-m3"])
def test_texts_are_reranked(opened: Open, kind: str, kinds: Kinds) -> None:
    server = kinds(kind)
    shown = opened(server=server, panel="rerank")
    texts = ["a dog", "the mat", "it rains"]
    shown.page.locator("#rerank-query").fill("the cat")
    shown.page.locator("#rerank-lines").fill("\n".join(texts))
    ranked = server.post("/rerank", json={"query": "the cat", "texts": texts}).json()
    rows = shown.page.locator("#panel-rerank .share")
    expect(rows.locator("> span:first-child")).to_have_text([texts[one["index"]] for one in ranked])
    expect(rows.locator(".figure")).to_have_text([f"{one['score']:.3g}" for one in ranked])
    shown.assert_accessible()
    shares = """import('./page/panel.js').then((found) =>
        [...found.scoreList('rerank.result', [['a', 3], ['b', -1], ['c', -5]], false).querySelectorAll('.bar > span')]
            .map((one) => Number(one.style.getPropertyValue('--share'))))"""
    assert shown.page.evaluate(shares) == [1, 0.5, 0]  # logits: the lowest has the shortest bar


@pytest.mark.parametrize("kind", KINDS)
def test_every_panel_of_a_model_opens_in_both_languages(opened: Open, kind: str, kinds: Kinds) -> None:
    shown = opened(server=kinds(kind))
    page = shown.page
    page.goto(shown.url)
    expect(page.locator(".tabs a").first).to_be_visible()
    for name in page.locator(".tabs a").evaluate_all("links => links.map((one) => one.hash.slice(1))"):
        shown.open(name)
        for _ in ("en", "zh"):
            settled = page.locator(f"#panel-{name} [aria-busy=false]")
            expect(settled.first).to_be_visible()
            expect(page.locator(f"#panel-{name} [aria-busy=true]")).to_have_count(0)
            page.wait_for_load_state("networkidle")
            assert re.findall("NaN|undefined|object Object", page.locator(f"#panel-{name}").inner_text()) == []
            expect(page.locator(f"#panel-{name} .error")).to_have_count(0)
            page.locator("#language").click()
    assert page.locator(".tabs a[href='#similar']").count() == ("stanford" not in kind)  # its texts have many vectors
