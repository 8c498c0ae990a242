"""README.md and OPERATING.md are true: requests get the printed answers, and the named settings and metrics exist."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.service.settings import Settings
from tests.paths import README
from tests.readme_examples import PAGES, examples
from tests.readme_metrics import GPU_ONLY, OPERATING, rewrite_operating, scrape
from tests.readme_settings import COMPOSE, rewrite_compose, rewrite_readme


def assert_same(found: Any, printed: Any) -> None:
    """Equal; numbers to 1e-3, because other processors round differently. Request ids are new each time."""
    if isinstance(printed, dict):
        assert list(found) == list(printed)
        for key in printed:
            if key != "request_id":
                assert_same(found[key], printed[key])
    elif isinstance(printed, list):
        assert len(found) == len(printed)
        for one, other in zip(found, printed, strict=True):
            assert_same(one, other)
    else:
        assert found == (pytest.approx(printed, abs=1e-3) if isinstance(printed, float) else printed)


def test_the_chinese_page_has_the_commands_of_the_english_one() -> None:
    english, chinese = (page.read_text("utf-8") for page in PAGES)
    commands = re.findall(r"^\$ ([^#\n]+)", chinese, re.MULTILINE)
    assert len(commands) >= 8
    assert [one for one in commands if one.strip() not in english] == []
    links = re.findall(r"\]\(([^)#]+)", chinese)
    assert [link for link in links if not (README.parent / link).is_file()] == []


def test_the_requests_in_the_readme_get_the_printed_answers(exported: Callable) -> None:
    with (
        ServiceProcess({"BERT_ARTIFACT": str(exported("sample").root), "BERT_TOKEN_BUDGET": "256"}) as process,
        httpx.Client(base_url=process.url) as client,
    ):
        shown = examples()
        assert {"/embed", "/fill-mask", "/nsp"} <= {one.path for one in shown}
        for one in shown:
            assert_same(client.post(one.path, json=one.body).json(), one.answer)


def test_the_table_of_settings_is_the_one_that_the_command_writes() -> None:
    text = README.read_text("utf-8")
    assert rewrite_readme(text) == text, "run `python -m tests.readme_settings`"


def test_compose_passes_every_setting_but_those_of_the_container() -> None:
    text = COMPOSE.read_text("utf-8")
    assert rewrite_compose(text) == text, "run `python -m tests.readme_settings`"
    passed = re.findall(r"^  (BERT_[A-Z_]+):$", text, re.MULTILINE)
    own = {"artifact", "model", "precision", "cache", "host", "port"}
    assert sorted(passed) == sorted(f"BERT_{name.upper()}" for name in Settings.model_fields if name not in own)


def test_the_table_of_metrics_is_the_one_that_the_command_writes() -> None:
    text = OPERATING.read_text("utf-8")
    assert rewrite_operating(text) == text, "run `python -m tests.readme_metrics`"


def test_the_table_has_the_metrics_of_a_scrape_and_no_others(server: httpx.Client) -> None:
    listed, scraped = (
        set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) for text in (scrape(), server.get("/metrics").text)
    )
    assert listed - GPU_ONLY == scraped


def test_the_metrics_reasons_and_settings_in_operating_md_exist(server: httpx.Client) -> None:
    text = OPERATING.read_text("utf-8")
    scraped = server.get("/metrics").text
    named = set(re.findall(r"\bbert_[a-z_]+", text)) - GPU_ONLY
    assert len(named) > 3
    assert {name for name in named if not re.search(rf"^(# TYPE )?{name}\b", scraped, re.MULTILINE)} == set()
    reasons = {reason for stated in re.findall(r'reason=~?"([^"]+)"', text) for reason in re.split(r"\W+", stated)}
    assert {reason for reason in reasons if f'reason="{reason}"' not in scraped} == set()
    settings = set(re.findall(r"\bBERT_[A-Z_]+", text)) - {"BERT_SERVICE_HOST"}  # set by Kubernetes
    assert settings <= {f"BERT_{name.upper()}" for name in Settings.model_fields}
