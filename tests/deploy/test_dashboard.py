"""The dashboard can be read, and what docker compose starts beside the service finds its files."""

from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.deploy.queries import DASHBOARD, DEPLOY, dashboard, panels
from tests.paths import ROOT

PANELS = panels()
WIDTH = 24  # columns of a Grafana dashboard


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    places = [panel["gridPos"] for panel in everything]
    assert all(place["x"] + place["w"] <= WIDTH for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert sources == [{"type": "prometheus", "uid": "${datasource}"}] * len(sources)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_the_chosen_replicas_only(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
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


def test_prometheus_scrapes_the_service_of_compose_on_the_port_of_its_container() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    (port,) = services["service"]["ports"]
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert found["names"] == ["service"]
    assert port.endswith(f":{found['port']}")
