"""KServe's ServingRuntime and the example: valid, confined as the chart's pods, with the paths of the service."""

from typing import Any

import yaml

from packbert.service.flags import variables_of
from packbert.service.settings import Settings
from tests.deploy.chart import check, render
from tests.deploy.chart_cases import MODEL
from tests.deploy.queries import DEPLOY


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "kserve" / name).read_text("utf-8"))
    return content


RUNTIME, EXAMPLE = read("servingruntime.yaml"), read("inferenceservice.yaml")
(CONTAINER,) = RUNTIME["spec"]["containers"]
PREDICTOR = EXAMPLE["spec"]["predictor"]


def test_kserve_takes_both() -> None:
    check(RUNTIME)
    check(EXAMPLE)
    pod = {key: RUNTIME["spec"][key] for key in ("containers", "volumes")}
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})


def test_the_example_asks_for_the_runtime_and_its_format() -> None:
    model = PREDICTOR["model"]
    (offered,) = RUNTIME["spec"]["supportedModelFormats"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["modelFormat"]["name"] == offered["name"]
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]


def test_the_container_serves_what_kserve_has_downloaded() -> None:
    variables = {each["name"]: each["value"] for each in CONTAINER["env"]}
    args = [one.replace("{{.Name}}", EXAMPLE["metadata"]["name"]) for one in CONTAINER["args"]]  # as KServe does
    settings = Settings.from_environment(variables_of(args[1:]) | variables)
    assert CONTAINER["args"][0] == "serve"
    assert settings.model == "/mnt/models"
    assert settings.served_model_name == EXAMPLE["metadata"]["name"]
    assert CONTAINER["ports"] == [{"containerPort": settings.port, "protocol": "TCP"}]
    assert PREDICTOR["terminationGracePeriodSeconds"] == settings.linger_seconds + settings.drain_seconds + 10
    assert PREDICTOR["enableServiceLinks"] is False


def test_probes_and_confinement_are_those_of_the_chart() -> None:
    chart = render(MODEL)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        expected = chart.container[probe] | {"httpGet": chart.container[probe]["httpGet"] | {"port": 8080}}
        assert CONTAINER[probe] == expected
    assert chart.container["securityContext"].items() <= CONTAINER["securityContext"].items()
    assert CONTAINER["image"] == chart.container["image"]
    writable = {each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert writable == {each["mountPath"] for each in chart.container["volumeMounts"]}
