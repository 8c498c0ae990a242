"""Alerts and dashboard: their queries name what a service exposes, operators learn what to do, compose finds files."""

import re
from collections import defaultdict
from itertools import combinations
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from packbert.service.settings import Settings
from tests.deploy.queries import (
    DASHBOARD,
    DEPLOY,
    RULE_TESTS,
    RULES,
    Query,
    alerts,
    dashboard,
    matched_words,
    panels,
    queries,
)
from tests.paths import ROOT

Series = dict[str, list[dict[str, str]]]
ALERTS, PANELS, QUERIES = alerts(), panels(), queries()
OF_PROMETHEUS = {"up", "ALERTS"}
OF_SCRAPE = {"job", "instance"}  # labels that Prometheus adds
WIDTH = 24  # columns of a Grafana dashboard
each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])


@pytest.fixture(scope="module")
def scraped(server: httpx.Client) -> Series:
    """The label sets of each series, by the name of the series."""
    found: Series = defaultdict(list)
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples:
            found[sample.name].append(sample.labels)
    return found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_every_metric_every_label_and_every_value_is_exposed(query: Query, scraped: Series) -> None:
    assert query.names <= {*OF_PROMETHEUS, *scraped}
    exposed, known = set(OF_SCRAPE), query.names.isdisjoint(OF_PROMETHEUS)
    for selector in query.selectors:
        if selector.name in OF_PROMETHEUS:
            continue
        labels = scraped.get(selector.name, [])
        names = {name for each in labels for name in each}
        assert {each.name for each in selector.matchers.matchers} - OF_SCRAPE <= names
        for label, value in matched_words(selector):
            assert label in OF_SCRAPE or value in {each[label] for each in labels}, (
                f'{selector.name}{{{label}="{value}"}}'
            )
        exposed |= names
    assert query.grouped_by <= exposed or not known
    assert set(re.findall(r"\{\{\s*(\w+)\s*\}\}", query.legend)) <= query.grouped_by


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


def test_an_alert_on_requests_has_a_floor_a_share_and_a_window() -> None:
    counting = [rule for rule in ALERTS if "increase(" in rule["expr"] or "bert_errors_total" in rule["expr"]]
    assert len(counting) == 7
    for rule in counting:
        assert "rate(" not in rule["expr"]
        assert re.search(r"\) > \d+ > .*0\.0\d \* sum by \(job, instance\)", rule["expr"])
        if "[5m]" in rule["expr"]:
            assert rule["for"] == "5m"


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    places = [panel["gridPos"] for panel in everything]
    assert all(place["x"] + place["w"] <= WIDTH for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


@each_panel
def test_a_panel_says_what_it_shows_in_which_unit_of_the_chosen_replicas(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert sources == [{"type": "prometheus", "uid": "${datasource}"}] * len(sources)
    for target in panel["targets"]:  # it shows the chosen replicas only
        selectors = target["expr"].count("{")
        assert target["expr"].count('job=~"$job", instance=~"$instance"') == selectors > 0


def test_compose_starts_prometheus_and_grafana_only_on_request_with_these_files() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    prometheus, grafana = services["prometheus"], services["grafana"]
    assert prometheus["profiles"] == grafana["profiles"] == ["monitoring"]
    for service in (prometheus, grafana):
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    mounted = {}
    for volume in prometheus["volumes"] + grafana["volumes"]:
        source, target, *_ = volume.split(":")
        if source.startswith("./"):
            mounted[target] = ROOT / source
    assert all(path.exists() for path in mounted.values())
    assert mounted["/etc/prometheus"] == DEPLOY / "prometheus"
    assert mounted["/etc/grafana/provisioning"] == DEPLOY / "grafana" / "provisioning"
    folder = provisioned("dashboards", "packbert.yml")["providers"][0]["options"]["path"]
    assert mounted[f"{folder}/{DASHBOARD.name}"] == DASHBOARD
    assert provisioned("datasources", "prometheus.yml")["datasources"][0]["url"] == "http://prometheus:9090"


def provisioned(kind: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / kind / name).read_text("utf-8"))
    return content


def test_prometheus_reads_the_rules_and_scrapes_the_service_of_compose_as_their_job() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    (port,) = services["service"]["ports"]
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    assert config["rule_files"] == [RULES.name]
    (job,) = config["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert (found["names"], port.endswith(f":{found['port']}")) == (["service"], True)
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "BertDown")
    assert rule["expr"] == f'up{{job="{job["job_name"]}"}} == 0'
