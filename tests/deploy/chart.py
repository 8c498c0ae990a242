"""The Helm chart rendered by Helm itself, and the resources of its output checked against their schemas.

Knows no cluster. The schemas of custom resources hold only the fields that deploy/ uses.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import yaml

from tests.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "packbert"
CUSTOM_RESOURCES = Path(__file__).with_name("custom_resources.json")
OLDEST, NEWEST = "1.31", kubernetes_validate.latest_version()  # the chart's kubeVersion, the newest known
RELEASE, NAMESPACE = "demo", "prod"
Resource = dict[str, Any]


class Rendered:
    """The resources of a release, by kind."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        documents = [yaml.safe_load(text) for name, text in files.items() if not name.endswith("NOTES.txt")]
        self.resources = {one["kind"]: one for one in documents if one}
        assert len(self.resources) == sum(1 for one in documents if one)

    def __getitem__(self, kind: str) -> Resource:
        found: Resource = self.resources[kind]
        return found

    @property
    def pod(self) -> Resource:
        found: Resource = self["Deployment"]["spec"]["template"]["spec"]
        return found

    @property
    def container(self) -> Resource:
        (found,) = self.pod["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def environment(self) -> dict[str, Any]:
        """Of the service; the value, or where it comes from."""
        names = [each["name"] for each in self.container["env"]]
        assert len(names) == len(set(names))
        return {each["name"]: each.get("value", each.get("valueFrom")) for each in self.container["env"]}

    @property
    def notes(self) -> str:
        return next(text for name, text in self.files.items() if name.endswith("NOTES.txt"))


@contextmanager
def loaded(folder: Path = CHART) -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(folder) as chart:
        yield chart


def render(values: dict[str, Any], name: str = RELEASE) -> Rendered:
    """Raises helm_python.HelmError where the chart or its schema refuses the values."""
    with loaded() as chart:
        chart.validate_schema(values)
        return Rendered(chart.render(values, name=name, namespace=NAMESPACE))


def check(resource: Resource, version: str = OLDEST) -> None:
    """Raises ValidationError where that Kubernetes would refuse the resource or drop one of its fields."""
    _check_text(json.dumps(resource), version)


@cache
def _check_text(text: str, version: str) -> None:
    """Many cases render the same Service: it is checked once."""
    resource: Resource = json.loads(text)
    kind = f"{resource['apiVersion']}/{resource['kind']}"
    if kind in (schemas := custom_resources()):
        jsonschema.validate(resource, schemas[kind])
    else:
        kubernetes_validate.validate(resource, version, strict=True)


@cache
def custom_resources() -> dict[str, Any]:
    """The schemas, by apiVersion and kind; every object in them is closed."""
    schemas: dict[str, Any] = json.loads(CUSTOM_RESOURCES.read_text("utf-8"))
    return {kind: schema | {"$defs": schemas["$defs"]} for kind, schema in schemas.items() if kind != "$defs"}
