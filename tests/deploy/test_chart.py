"""The Helm chart: what it renders is valid Kubernetes, every value has its effect, and wrong values are refused."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.tools.settings import CHART_SCHEMA, rewrite_chart
from packbert.service.settings import Settings, named_models
from tests.deploy.chart import (
    NEWEST,
    ChartError,
    chart_files,
    check,
    in_helm,
    lint,
    render,
    render_below_another,
    render_packaged,
)
from tests.deploy.chart_cases import CASES, EFFECTS, EXPORT, MODEL, MODELS, effect_of, of_model_alone, values_of
from tests.deploy.queries import DASHBOARD, DEPLOY, RULES, Query, alerts
from tests.paths import ROOT

ALL: dict[str, Any] = {
    "prometheusRule": {"enabled": True},
    "serviceMonitor": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "autoscaling": {"kind": "keda"},
    "dashboard": {"enabled": True},
    "serviceAccount": {"create": True},
    "ingress": {"enabled": True},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]},
}
RECORDED: dict[str, Any] = json.loads(EFFECTS.read_text("utf-8"))


def leaves(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """The values by their paths; a free map such as `podLabels` is one value."""
    free = {"settings", "resources", "export.resources", "podSecurityContext", "dashboard.labels"}
    found: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{above}{key}"
        found |= leaves(value, f"{path}.") if isinstance(value, dict) and value and path not in free else {path: value}
    return found


def at(values: dict[str, Any], path: str) -> Any:
    """The value at a path of `leaves`; None without one."""
    found: Any = values
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_value_has_its_effect_and_helm_kubernetes_and_the_service_take_the_result(name: str, tmp_path: Path) -> None:
    rendered = render(values := values_of(CASES[name]))
    assert effect_of(rendered) == RECORDED[name], "if it is meant, run `python -m tests.deploy.chart_cases`"
    for resource in rendered.resources.values():
        check(resource)
    report = in_helm(lint, values)
    assert (report["errors"], [each for each in report["messages"] if each["severity"] > 1]) == ([], [])
    variables = {name: value for name, value in rendered.environment.items() if isinstance(value, str)}
    variables.pop("BERT_API_KEY_FILE", None)  # it has to exist
    if "BERT_MODELS" in variables:
        variables["BERT_MODELS"] = str(tmp_path / "models.yaml")
        (tmp_path / "models.yaml").write_text(rendered["ConfigMap"]["data"]["models.yaml"], "utf-8")
    settings = Settings.from_environment(variables)
    assert (settings.host, settings.port) == ("0.0.0.0", 8080)


def test_a_model_alone_has_the_recorded_resources() -> None:
    assert of_model_alone() == RECORDED["a model alone"]
    assert sorted(RECORDED) == sorted(["a model alone", *CASES])


@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_the_newest_kubernetes_takes_all_resources(kind: str) -> None:
    rendered = render(MODEL | EXPORT | ALL | {"autoscaling": {"kind": kind}})
    for resource in rendered.resources.values():
        check(resource, NEWEST)


def test_every_value_is_changed_from_its_default_in_a_case() -> None:
    defaults = leaves(in_helm(chart_files)["values"])
    tried = {
        path
        for path, default in defaults.items()
        if any(at(values_of(case), path) not in (None, default) for case in CASES.values())
    }
    assert set(defaults) - tried == set()


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "set model .a hub id., models, checkpoint.claim, checkpoint.uri or artifact.claim"),
        (MODEL | {"artifact": {"claim": "x"}}, "model and artifact.claim are set: leave one of them"),
        ({"checkpoint": {"claim": "x", "uri": "s3://x"}}, "checkpoint.claim and checkpoint.uri are set"),
        ({"checkpoint": {"uri": "no address"}}, "uri"),
        ({"checkpoint": {"claim": "x"}} | EXPORT, "export.initContainer exports model once"),
        ({"artifact": {"claim": "x"}} | EXPORT, "export.initContainer exports model once"),
        (MODEL | {"precision": "bf16", "gpu": {"count": 1}}, "bf16 is of CPUs"),
        (MODEL | {"httpRoute": {"enabled": True}}, "httpRoute.parentRefs is empty"),
        (MODEL | {"replicas": 2, "cache": {"claim": {"create": True}}}, "several replicas need ReadWriteMany"),
        (MODEL | {"autoscaling": {"kind": "hpa"}, "cache": {"claim": {"name": "x"}}}, "need ReadWriteMany"),
        (MODEL | {"autoscaling": {"kind": "hpa", "minReplicas": 5}}, "minReplicas is 5, above .*maxReplicas, 4"),
        (MODEL | {"replica": 2}, "replica"),
        (MODEL | {"settings": {"BERT_MAX_INPUT": 5}}, "BERT_MAX_INPUT"),
        (MODEL | {"settings": {"BERT_API_KEY": "secret"}}, "BERT_API_KEY"),
        (MODEL | {"extraEnv": [{"name": "BERT_PORT", "value": "1"}]}, "extraEnv"),
        ({"model": "bert"}, "model"),
        ({"artifact": {"claim": "x", "path": "../secret"}}, "path"),
        (MODEL | {"adminPort": 8080}, "adminPort"),
        (MODEL | MODELS, "model and models are set"),
        (MODELS | EXPORT, "export.initContainer exports model once"),
        ({"models": [{"name": "zh", "model": "/artifacts/zh"}]}, "zh is /artifacts/zh: set artifact.claim"),
        ({"models": [{"name": "zh", "model": "/artifacts/../zh"}], "artifact": {"claim": "x"}}, "models"),
        ({"models": [{"name": "a b", "model": "org/zh"}]}, "models"),
        (MODEL | {"settings": {"BERT_ADMIN_KEY": "secret"}}, "BERT_ADMIN_KEY"),
        (MODEL | {"ingress": {"enabled": True, "path": "/bert"}}, "ingress.path is /bert.*set the annotations that do"),
    ],
)
def test_a_wrong_value_is_refused(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(ChartError, match=fault):
        render(values)
    assert "helm_python" not in sys.modules  # see `helm_process`


def test_the_pod_has_as_long_as_the_service_takes_to_end() -> None:
    """Linger, drain and a margin; the compose file has the sum for several workers."""
    rendered = render(MODEL | {"workers": 2, "lingerSeconds": 0})
    assert int(rendered.environment["BERT_DRAIN_SECONDS"]) == Settings.model_fields["drain_seconds"].default
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert f"{rendered.pod['terminationGracePeriodSeconds'] + 5}s" == compose["services"]["serve"]["stop_grace_period"]


def test_the_initcontainer_exports_once(tmp_path: Path) -> None:
    """With a stand-in for packbert, which writes the folder and what it was asked for."""
    exporter = tmp_path / "packbert"
    exporter.write_text(f'#!/bin/sh\nmkdir -p "$3/cuda"\necho "$@" >> {tmp_path}/asked\n')
    exporter.chmod(0o755)
    (init,) = render(MODEL | EXPORT | {"gpu": {"count": 1}}).pod["initContainers"]
    model, _, *others = init["args"]
    folder = tmp_path / "artifact"
    for _ in range(2):
        path = f"{tmp_path}:/usr/bin:/bin"
        subprocess.run([*init["command"], model, str(folder), *others], check=True, env={"PATH": path})
    asked = (tmp_path / "asked").read_text("utf-8")
    assert asked == f"export org/model {folder} --precision fp32 --device cuda\n"


def test_the_service_reads_the_file_of_models_and_other_models_restart_it(tmp_path: Path) -> None:
    models = [*MODELS["models"], {"name": "next", "model": "org/next", "of": "zh", "weight": 0.1, "shadow": 0.5}]
    rendered, other = render({"models": models}), render(MODELS)
    file = tmp_path / "models.yaml"
    file.write_text(rendered["ConfigMap"]["data"][file.name], "utf-8")
    named = named_models(Settings.from_environment({"BERT_MODELS": str(file)}))
    assert {name: one.model for name, one in named.items()} == {one["name"]: one["model"] for one in models}
    assert list(named) == ["zh", "en", "next"]
    assert (named["next"].of, named["next"].weight, named["next"].shadow) == ("zh", 0.1, 0.5)
    digests = [one["Deployment"]["spec"]["template"]["metadata"]["annotations"] for one in (rendered, other)]
    assert digests[0] != digests[1]
    assert rendered.notes.startswith("demo-packbert serves zh, en, next.")


def test_the_chart_can_be_a_dependency_of_another_one(tmp_path: Path) -> None:
    values = {"packbert": MODEL, "global": {"imageRegistry": "registry.example.com"}}
    files = in_helm(render_below_another, values, tmp_path)
    deployment = yaml.safe_load(files["parent/charts/packbert/templates/deployment.yaml"])
    assert deployment["metadata"]["name"] == "demo-packbert"


def test_alerts_and_dashboard_are_the_files_of_deploy_in_a_packaged_chart_too(tmp_path: Path) -> None:
    rules, dashboard = yaml.safe_load(RULES.read_text("utf-8")), json.loads(DASHBOARD.read_text("utf-8"))
    rendered, packaged = render(MODEL | ALL), in_helm(render_packaged, MODEL | ALL, tmp_path)
    in_package = [
        yaml.safe_load(packaged[f"packbert/templates/{name}.yaml"]) for name in ("prometheusrule", "dashboard")
    ]
    for rule, panels in ((rendered["PrometheusRule"], rendered["ConfigMap"]), in_package):
        assert rule["spec"] == rules
        assert json.loads(panels["data"][DASHBOARD.name]) == dashboard
    label = rendered["ServiceMonitor"]["spec"]["jobLabel"]
    job = rendered["Service"]["metadata"]["labels"][label]
    (down,) = (rule for rule in alerts() if rule["alert"] == "BertDown")
    assert down["expr"] == f'up{{job="{job}"}} == 0'


def test_a_release_with_the_name_of_the_chart_does_not_repeat_it() -> None:
    assert render(MODEL, name="packbert")["Deployment"]["metadata"]["name"] == "packbert"


def test_the_autoscaler_asks_for_metrics_of_the_service_as_ray_does() -> None:
    metadata = render(MODEL | ALL)["ScaledObject"]["spec"]["triggers"][0]["metadata"]
    hpa = render(MODEL | {"autoscaling": {"kind": "hpa"}})["HorizontalPodAutoscaler"]
    asked = {each["pods"]["metric"]["name"] for each in hpa["spec"]["metrics"]}
    assert Query("keda", metadata["query"]).names == asked
    metrics = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    assert asked <= set(re.findall(r"^\| `(\w+)` \| gauge", metrics, re.MULTILINE))
    text = (DEPLOY / "ray" / "bert_serve.py").read_text("utf-8")
    targets = {name: float(value) for name, value in re.findall(r"^TARGET_(\w+) = ([\d.]+)", text, re.MULTILINE)}
    defaults = in_helm(chart_files)["values"]["autoscaling"]
    assert {"BUSY": defaults["busyRatio"], "WAIT_SECONDS": defaults["waitSeconds"]} == targets


def test_the_settings_of_the_schema_are_those_of_the_service() -> None:
    text = CHART_SCHEMA.read_text("utf-8")
    assert rewrite_chart(text) == text, "run `make docs`"
