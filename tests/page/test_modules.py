"""The page's modules by themselves: they compute what NumPy and prometheus_client compute, and the texts match."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser
from prometheus_client.parser import text_string_to_metric_families

from tests.page.browser import Shown, View, show


@pytest.fixture(scope="module")
def shown(browser: Browser, bundled: httpx.Client) -> Iterator[Shown]:
    """A document that runs nothing by itself."""
    with show(browser, str(bundled.base_url), View()) as shown:
        shown.page.goto(f"{shown.url}/page/icon.svg")
        yield shown


def call(shown: Shown, module: str, expression: str, *values: Any) -> Any:
    """The value of an expression over `m`, the module, and `v`, the values."""
    return shown.page.evaluate(f"v => import('./{module}.js').then((m) => {expression})", list(values))


def test_the_map_is_the_projection_on_two_principal_components(shown: Shown) -> None:
    vectors = np.random.default_rng(5).normal(size=(9, 40)) * np.linspace(3, 0.2, 40)
    found = call(shown, "vectors", "m.project(v[0])", vectors.tolist())
    left, values, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    for component in (0, 1):
        expected = left[:, component] * values[component]
        got = np.array(found["points"])[:, component]
        assert np.abs(got) == pytest.approx(np.abs(expected), abs=1e-4)
        assert np.corrcoef(got, expected)[0, 1] ** 2 == pytest.approx(1)
        assert got[np.abs(got).argmax()] > 0
        assert found["shares"][component] == pytest.approx(values[component] ** 2 / (values**2).sum(), abs=1e-6)


@pytest.mark.parametrize("vectors", [[[1, 2], [1, 2]], [[0, 0], [0, 0], [0, 0]], [[1, 0], [3, 0], [5, 0]]])
def test_the_map_of_vectors_in_less_than_two_dimensions(shown: Shown, vectors: list[list[float]]) -> None:
    found = call(shown, "vectors", "m.project(v[0])", vectors)
    assert np.array(found["points"])[:, 1] == pytest.approx(np.zeros(len(vectors)))
    assert np.isfinite(found["points"]).all()


def test_cosines_are_those_of_numpy(shown: Shown) -> None:
    a, b = np.random.default_rng(6).normal(size=(2, 12))
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert call(shown, "vectors", "m.cosine(v[0], v[1])", a.tolist(), b.tolist()) == pytest.approx(expected)
    assert call(shown, "vectors", "m.cosine([0, 0], [1, 1])") == 0


def test_metrics_are_read_as_the_library_of_prometheus_reads_them(shown: Shown, bundled: httpx.Client) -> None:
    text = bundled.get("/metrics").text + 'odd{a="x\\"y\\\\z\\n",b="{,}"} -1.5e-3 1700000000\nodd{a=""} +Inf\n'
    found = call(
        shown, "prometheus", "[...m.parse(v[0])].map(([n, s]) => [n, s.map((o) => [o.labels, `${o.value}`])])", text
    )
    expected: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            expected.setdefault(sample.name, []).append((sample.labels, sample.value))
    got = {name: [(labels, float(value.replace("Infinity", "inf"))) for labels, value in all_] for name, all_ in found}
    assert got == expected


def test_quantiles_are_interpolated_as_prometheus_does(shown: Shown) -> None:
    text = "".join(
        f'h_bucket{{le="{bound}",task="a"}} {count}\n' for bound, count in (("1", 0), ("2", 6), ("4", 8), ("+Inf", 10))
    )
    quantiles = "[0.3, 0.7, 0.95].map((q) => m.quantile(m.histograms(m.parse(v[0]), 'h', 'task').get('a'), q))"
    assert call(shown, "prometheus", quantiles, text) == pytest.approx([1.5, 3, 4])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a well-known [MASK].", ["It's", "a", "well-known", "[MASK]"]),
        ("我的dog很可爱。", ["我", "的", "dog", "很", "可", "爱"]),
        ("[MASK][MASK] naïve café 3.5", ["[MASK]", "[MASK]", "naïve", "café", "3", "5"]),
        ("", []),
    ],
)
def test_a_sentence_is_split_into_words_and_masks(shown: Shown, text: str, words: list[str]) -> None:
    parts = call(shown, "panels/fill_mask", "m.split(v[0], '[MASK]')", text)
    assert "".join(part["text"] for part in parts) == text
    assert [part["text"] for part in parts if part["kind"] != "other"] == words
    assert [part["text"] for part in parts if part["kind"] == "mask"] == [one for one in words if one == "[MASK]"]


def test_both_languages_have_the_same_texts(shown: Shown) -> None:
    keys = "Promise.all(['en', 'zh'].map((one) => import(`./texts/${one}.js`)))"
    english, chinese = shown.page.evaluate(f"{keys}.then((found) => found.map((one) => one.default))")
    assert list(english) == list(chinese)
    names = re.compile(r"\{(\w+)\}")
    assert {key: set(names.findall(text)) for key, text in english.items()} == {
        key: set(names.findall(text)) for key, text in chinese.items()
    }
