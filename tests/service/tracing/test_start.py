"""When a service makes traces: where the standard variables ask for it, and the packages are there."""

import subprocess
import sys

import pytest

from packbert.service.__main__ import main
from packbert.service.settings import Settings, SettingsError
from tests.paths import ROOT

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("variables", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_SERVICE_NAME": "bert"}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standard_variables_turn_traces_on(variables: dict[str, str], on: bool) -> None:
    assert Settings.from_environment({"BERT_MODEL": "."} | variables).tracing is on


def test_a_protocol_that_is_not_there_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc': traces are sent as http/protobuf"):
        Settings.from_environment({"BERT_MODEL": "."} | ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_a_missing_package_stops_the_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # as where it is not installed
    for name, value in ({"BERT_MODEL": ".", "BERT_PORT": "0"} | ENDPOINT).items():
        monkeypatch.setenv(name, value)
    assert main() == 2
    assert capsys.readouterr().err == (
        "packbert serve: OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need opentelemetry-sdk: "
        "install packbert[otel], or unset the variable\n"
    )


def test_a_service_without_traces_loads_no_sdk() -> None:
    code = (
        "import sys, service.http.server, service.models, service.workers.worker;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"
