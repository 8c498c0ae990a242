"""The PromQL expressions of deploy/: of the alerts, and of the dashboard's panels, with its variables replaced.

Knows files and syntax, not which metrics exist.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser
import yaml

from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
RULE_TESTS = ROOT / "tests" / "deploy" / "rules_test.yml"
DASHBOARD = DEPLOY / "grafana" / "packbert.json"
VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*"}
CHILDREN = ("lhs", "rhs", "expr", "param", "vector_selector")  # of a node of promql_parser, besides `args`


@dataclass(frozen=True, slots=True)
class Query:
    """`where` is the alert or the panel; `legend` is empty for an alert."""

    where: str
    expression: str
    legend: str = ""

    @property
    def nodes(self) -> list[Any]:
        """The expression's syntax tree, flat. Raises ValueError where it is no PromQL."""
        return list(_walk(promql_parser.parse(self.expression)))

    @property
    def selectors(self) -> list[Any]:
        return [node for node in self.nodes if isinstance(node, promql_parser.VectorSelector)]

    @property
    def names(self) -> set[str]:
        """Of the metrics."""
        return {selector.name for selector in self.selectors}

    @property
    def grouped_by(self) -> set[str]:
        """The labels after `by`."""
        grouped = [node.modifier for node in self.nodes if isinstance(node, promql_parser.AggregateExpr)]
        return {label for modifier in grouped if modifier is not None for label in modifier.labels}

    @property
    def filters(self) -> bool:
        """Whether it compares or asks for an absence, so that no result is one of its results."""
        comparisons = (">", "<", "==", "!=", ">=", "<=")
        compared = [node for node in self.nodes if isinstance(node, promql_parser.BinaryExpr)]
        return self.expression.startswith("absent(") or any(str(node.op) in comparisons for node in compared)


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in [*(getattr(node, name, None) for name in CHILDREN), *getattr(node, "args", [])]:
        if child is not None:
            yield from _walk(child)


def matched_words(selector: Any) -> list[tuple[str, str]]:
    """(label, value) of each value that a selector names: `reason=~"a|b"` names two, `job=~".*"` none."""
    pairs = [(each.name, word) for each in selector.matchers.matchers for word in each.value.split("|")]
    return [(label, word) for label, word in pairs if re.fullmatch(r"\w+", word)]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return content


def panels() -> list[dict[str, Any]]:
    """Without the rows, which only have a title."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[Query]:
    found = [Query(rule["alert"], rule["expr"]) for rule in alerts()]
    for panel in panels():
        found += [Query(panel["title"], replaced(one["expr"]), one["legendFormat"]) for one in panel["targets"]]
    found += [Query("annotations", replaced(one["expr"])) for one in dashboard()["annotations"]["list"]]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":  # label_values(SELECTOR, LABEL)
            selector = variable["definition"].removeprefix("label_values(").rpartition(",")[0]
            found.append(Query(f"variable {variable['name']}", replaced(selector)))
    return found


def replaced(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression
