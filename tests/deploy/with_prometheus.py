"""A real Prometheus scrapes a real service, and runs every query of the alerts and the dashboard.

`make check-rules` runs it where Prometheus is installed; `make test` does not, because it need not be.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.harness.process import free_port
from tests.deploy.queries import DEPLOY, RULES, queries
from tests.service.polling import until

QUERIES = queries()


@pytest.fixture(scope="module")
def prometheus(server: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """With the configuration of deploy/, but this service and a scrape each second."""
    folder = tmp_path_factory.mktemp("prometheus")
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [server.base_url.netloc.decode()]}]
    Path(folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
    port = free_port()
    options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data"}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *arguments, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            until(lambda: is_scraped_twice(client, server))
            yield client
    finally:
        process.terminate()
        process.wait()


def is_scraped_twice(prometheus: httpx.Client, server: httpx.Client) -> bool:
    """A rate needs two, with requests in between."""
    server.post("/embed", json={"inputs": "the cat"}).raise_for_status()
    try:
        ready = prometheus.get("/-/ready").is_success  # until then it answers 503 without JSON
    except httpx.TransportError:
        return False  # it does not listen yet
    return ready and bool(result(prometheus, 'sum(rate(bert_requests_total{status="200"}[1m])) > 0'))


def result(prometheus: httpx.Client, expression: str) -> list[Any]:
    answer = prometheus.get("/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", answer
    found: list[Any] = answer["data"]["result"]
    return found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_a_query_runs_and_has_a_result(query: Any, prometheus: httpx.Client) -> None:
    found = result(prometheus, query.expression)
    assert found or query.filters or "ALERTS" in query.names


def test_every_alert_is_evaluated_without_an_error(prometheus: httpx.Client) -> None:
    def rules() -> list[Any]:
        (group,) = prometheus.get("/api/v1/rules").json()["data"]["groups"]
        return list(group["rules"])

    until(lambda: "unknown" not in {rule["health"] for rule in rules()})  # all have been evaluated
    found = rules()
    assert {rule["health"] for rule in found} == {"ok"}
    assert [rule for rule in found if rule["state"] != "inactive" and rule["name"] == "BertDown"] == []
