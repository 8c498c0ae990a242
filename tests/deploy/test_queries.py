"""Every query of the alerts and the dashboard names metrics, labels and values that a running service exposes."""

import re
from collections import defaultdict

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.queries import Query, matched_words, queries

Series = dict[str, list[dict[str, str]]]
QUERIES = queries()
OF_PROMETHEUS = {"up", "ALERTS"}
OF_SCRAPE = {"job", "instance"}  # labels that Prometheus adds


@pytest.fixture(scope="module")
def scraped(server: httpx.Client) -> Series:
    """The label sets of each series, by the name of the series."""
    found: Series = defaultdict(list)
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples:
            found[sample.name].append(sample.labels)
    return found


def of_service(query: Query) -> set[str]:
    return query.names - OF_PROMETHEUS


def test_every_metric_is_exposed(scraped: Series) -> None:
    unknown = {(query.where, name) for query in QUERIES for name in of_service(query) - set(scraped)}
    assert unknown == set()


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_every_label_and_every_value_is_exposed(query: Query, scraped: Series) -> None:
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


@pytest.mark.parametrize("query", [one for one in QUERIES if one.legend], ids=lambda query: query.where)
def test_a_legend_names_only_labels_that_the_query_keeps(query: Query) -> None:
    assert set(re.findall(r"\{\{\s*(\w+)\s*\}\}", query.legend)) <= query.grouped_by
