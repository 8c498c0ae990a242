"""The Helm chart rendered by Helm itself, and the resources of its output checked against their schemas.

Knows no cluster. The schemas of custom resources hold only the fields that deploy/ uses.
"""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "packbert"
CUSTOM_RESOURCES = Path(__file__).with_name("custom_resources.json")
OLDEST, NEWEST = "1.31", kubernetes_validate.latest_version()  # the chart's kubeVersion, the newest known
RELEASE, NAMESPACE = "demo", "prod"
Resource = dict[str, Any]


class ChartError(Exception):
    """Helm refuses the chart or its values."""


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
        (found,) = [each for each in self.pod["containers"] if each["name"] == "bert"]
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


def render(values: dict[str, Any], name: str = RELEASE) -> Rendered:
    """Raises ChartError where the chart or its schema refuses the values."""
    return Rendered(in_helm(_render, values, name))


def in_helm(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of this module that imports Helm's library returns."""
    return helm_process().submit(function, *arguments).result()


@cache
def helm_process() -> ProcessPoolExecutor:
    """The only process that imports Helm's library, which is written in Go: its runtime takes over the signals of a
    process, and a socket that was closed by its peer then ended the one of the tests."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def lint(values: dict[str, Any]) -> Any:
    """Helm's report on the chart with these values."""
    import helm_python

    return helm_python.lint(CHART, values, strict=True)


def chart_files() -> dict[str, Any]:
    """The chart's `values` and `metadata`, as Helm reads them."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        return {"values": chart.values, "metadata": chart.metadata}


def render_packaged(values: dict[str, Any], folder: Path) -> Any:
    """What the chart that is packaged into `folder` renders, by file."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        archive = chart.save(folder)
    return _files_of(Path(archive), values)


def render_below_another(values: dict[str, Any], folder: Path) -> Any:
    """What a chart `parent`, which is written into `folder` and has this one as its dependency, renders, by file."""
    shutil.copytree(CHART, folder / "charts" / "packbert")
    dependency = {"name": "packbert", "version": ">=0.1.0"}
    metadata = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(metadata), "utf-8")
    return _files_of(folder, values)


def _files_of(chart: Path, values: dict[str, Any], name: str = RELEASE) -> Any:
    import helm_python

    with helm_python.Chart.load(chart) as loaded:
        loaded.validate_schema(values)
        return loaded.render(values, name=name, namespace=NAMESPACE)


def _render(values: dict[str, Any], name: str) -> Any:
    import helm_python

    try:
        return _files_of(CHART, values, name)
    except helm_python.HelmError as error:  # unpickled, it would import the library
        raise ChartError(str(error)) from None


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
