"""The alerts have what an operator needs, a unit test each, and thresholds that follow the settings."""

import re
from typing import Any

import pytest
import yaml

from packbert.service.settings import Settings
from tests.deploy.queries import DEPLOY, RULE_TESTS, RULES, alerts

ALERTS = alerts()


def test_actions_name_settings_that_exist() -> None:
    named = {name for rule in ALERTS for name in re.findall(r"BERT_[A-Z_]+", rule["annotations"]["action"])}
    assert named
    assert named <= {f"BERT_{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_where_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "action"}
    assert "$labels.instance" in rule["annotations"]["description"] or rule["expr"].startswith("absent(")


def test_every_alert_has_a_case_where_it_fires_and_another() -> None:
    suite = yaml.safe_load(RULE_TESTS.read_text("utf-8"))
    assert [(RULE_TESTS.parent / file).resolve() for file in suite["rule_files"]] == [RULES]
    cases = [case for test in suite["tests"] for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in ALERTS}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


def test_the_threshold_of_the_queue_is_half_the_longest_wait() -> None:
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "BertQueueLong")
    half = Settings.model_fields["max_wait_seconds"].default / 2
    assert rule["expr"] == f"bert_wait_seconds_estimated > {half:g}"


def test_prometheus_reads_these_rules_and_names_the_job_that_they_expect() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    assert config["rule_files"] == [RULES.name]
    (job,) = config["scrape_configs"]
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "BertDown")
    assert rule["expr"] == f'up{{job="{job["job_name"]}"}} == 0'


def test_an_alert_on_requests_has_a_floor_a_share_and_a_window() -> None:
    counting = [rule for rule in ALERTS if "increase(" in rule["expr"] or "bert_errors_total" in rule["expr"]]
    assert len(counting) == 7
    for rule in counting:
        assert "rate(" not in rule["expr"]
        assert re.search(r"\) > \d+ > .*0\.0\d \* sum by \(job, instance\)", rule["expr"])
        if "[5m]" in rule["expr"]:
            assert rule["for"] == "5m"
