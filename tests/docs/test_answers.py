"""The pages are true: requests get the printed answers, and what code or results give is what the pages show."""

import inspect
import re
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx
import pytest

import packbert
from docs.tools import pictures
from docs.tools.answers import BUNDLED, Request, requests_of, same, send, shown
from docs.tools.marks import PART, fill, names, pages
from docs.tools.metrics import scrape
from docs.tools.parts import parts_of
from docs.tools.python_reference import public_names
from docs.tools.settings import COMPOSE, rewrite_compose
from packbert.service.settings import Settings
from tests.docs.conftest import ClientOf
from tests.paths import ROOT

REQUESTS = [request for page in pages() for request in requests_of(page)]
DIFFERENT = {(one.model, one.command, one.answer): one for one in REQUESTS}  # Chinese pages have the same
ALERTS = ROOT / "docs" / "operate" / "alerts.md"


@pytest.mark.parametrize("request_", DIFFERENT.values(), ids=lambda one: f"{one.page.stem}-{one.line + 1}")
def test_a_request_of_a_page_gets_the_printed_answer(request_: Request, client_of: ClientOf) -> None:
    response = send(request_, client_of(request_.model))
    assert response.status_code == 200 or '"error"' in (request_.answer or ""), response.text
    if request_.answer is not None:
        assert same(response.text, request_.answer), f"run `make docs`; the answer is {shown(response.text)}"


def test_readme_shows_four_requests_of_the_bundled_model() -> None:
    mine = [one for one in REQUESTS if one.page.name == "README.md"]
    assert {one.model for one in mine} == {BUNDLED}
    assert len([one for one in mine if one.answer]) == 4


@pytest.fixture(scope="module")
def parts(client_of: ClientOf) -> dict[str, Callable[[], str]]:
    document = cache(lambda: client_of(BUNDLED).get("/openapi.json").json())
    made = parts_of(document, families=str)
    del made["families"]  # of tests/export/test_families.py, which has the artifacts
    return made


@pytest.mark.parametrize(
    "page", [page for page in pages() if PART.search(page.read_text("utf-8"))], ids=lambda p: p.stem
)
def test_the_parts_that_code_gives_are_those_that_the_command_writes(page: Path, parts: dict[str, Any]) -> None:
    text = page.read_text("utf-8")
    assert fill(text, parts) == text, "run `make docs`"


def test_each_python_name_is_described_by_its_own_docstring() -> None:
    for section in re.split(r"^##+ ", public_names(), flags=re.MULTILINE)[1:]:
        words = attrgetter(section.partition("\n")[0])(packbert).__doc__
        assert words, section
        assert inspect.cleandoc(words) in section.replace("\\[", "[")


def test_every_part_stands_on_one_page() -> None:
    assert sorted(names()) == sorted(parts_of(dict, str))


def test_the_pictures_are_those_of_the_bundled_models_answers(client_of: ClientOf) -> None:
    """But for digits: another processor rounds differently."""
    number = re.compile(r"-?\d+(\.\d+)?(e-\d+)?")
    for path, drawn in pictures.drawn(client_of(BUNDLED)):
        assert number.sub("N", drawn) == number.sub("N", path.read_text("utf-8")), f"run `make docs`: {path.name}"


def test_a_rounded_and_cut_answer_is_the_same_as_the_whole_one() -> None:
    whole, printed = '[{"score":0.1270164827,"token_str":"year"}]', '[{"score":0.127,"token_str":"year"}]'
    assert shown(whole) == printed
    assert same(whole, printed)
    assert same(whole, '[{"score":0.127,"token_str" ...')
    for other in (printed.replace("0.127", "0.137"), printed.replace("year", "month"), '[{"score":0.127,"token_str"'):
        assert not same(whole, other)


def test_compose_passes_every_setting_but_those_of_the_container() -> None:
    text = COMPOSE.read_text("utf-8")
    assert rewrite_compose(text) == text, "run `make docs`"
    passed = re.findall(r"^  (BERT_[A-Z_]+):$", text, re.MULTILINE)
    own = {"artifact", "model", "models", "precision", "cache", "host", "port"}
    assert sorted(passed) == sorted(f"BERT_{name.upper()}" for name in Settings.model_fields if name not in own)


def test_the_table_has_the_metrics_of_a_scrape_and_no_others(server: httpx.Client) -> None:
    listed, scraped = (
        set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) for text in (scrape(), server.get("/metrics").text)
    )
    assert listed == scraped


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    text = ALERTS.read_text("utf-8")
    listed = re.findall(r"^\| \[`(\w+)`\]", text, re.MULTILINE)
    assert re.findall(r"^## (\w+)\n\n\S", text, re.MULTILINE) == listed


@pytest.mark.parametrize("page", pages(), ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_settings_and_metrics_that_a_page_names_exist(page: Path, server: httpx.Client) -> None:
    text = page.read_text("utf-8")
    settings = {f"BERT_{name.upper()}" for name in Settings.model_fields} | {"BERT_SERVICE_HOST"}  # set by Kubernetes
    assert set(re.findall(r"\bBERT_[A-Z_]*[A-Z]\b", text)) - settings == set()
    scraped = server.get("/metrics").text
    named = set(re.findall(r"`(bert_[a-z_]+)`", text))
    assert {name for name in named if not re.search(rf"^(# TYPE )?{name}\b", scraped, re.MULTILINE)} == set()
