"""BERT_* variables: read once, checked whole; an unknown or wrong one is an error that names it."""

import re
import sys
from pathlib import Path

import pytest

from packbert.service.flags import variables_of
from packbert.service.settings import GONE, Settings, SettingsError

GOOD = {"BERT_MODEL": "/models/bert"}
LINKS = ("HOST", "SERVICE_PORT_HTTP", "PORT_8080_TCP_ADDR")
LINKED = "Kubernetes sets these .* enableServiceLinks: false"
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("variables", "name", "value"),
    [
        ({}, "model", "/models/bert"),
        ({}, "port", 8080),
        ({"PATH": "/bin", "BERT_PORT": "9"}, "port", 9),
        ({"BERT_TRUNCATE": "true"}, "truncate", True),
        ({"BERT_DRAIN_SECONDS": "0.5"}, "drain_seconds", 0.5),
        ({"BERT_API_KEY": ""}, "api_key", ""),
        ({"BERT_MEMORY_LIMIT": "4GiB"}, "memory_limit", 4 * 2**30),
        ({"BERT_MEMORY_LIMIT": "4GB"}, "memory_limit", 4 * 10**9),
        ({"BERT_MEMORY_LIMIT": "1000"}, "memory_limit", 1000),
        ({"XDG_CACHE_HOME": "/data"}, "cache_folder", Path("/data/packbert")),
        ({"BERT_CACHE": "/cache", "XDG_CACHE_HOME": "/data"}, "cache_folder", Path("/cache")),
        ({}, "cache_folder", Path("~/.cache/packbert").expanduser()),
        ({"NOTIFY_SOCKET": "/run/notify"}, "notify_socket", "/run/notify"),
        ({}, "notify_socket", ""),
        ({}, "tracing", False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_SERVICE_NAME": "bert"}, "tracing", False),
        (COLLECTOR, "tracing", True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, "tracing", True),
        (COLLECTOR | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "tracing", True),
        (COLLECTOR | {"OTEL_SDK_DISABLED": "true"}, "tracing", False),
        (COLLECTOR | {"OTEL_TRACES_EXPORTER": "none"}, "tracing", False),
    ],
)
def test_the_model_is_all_that_must_be_set_and_values_are_parsed(
    variables: dict[str, str], name: str, value: object
) -> None:
    assert getattr(Settings.from_environment(GOOD | variables), name) == value


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("BERT_PORTT", "1", r"unknown setting BERT_PORTT \(did you mean BERT_PORT\?\); known are BERT_ACCESS_LOG, "),
        ("BERT_API_KEY", ", ,", "it has commas and no key"),
        ("BERT_MEMORY_LIMIT", "much", "BERT_MEMORY_LIMIT: much is not a size, such as 4GiB"),
        ("BERT_SERVED_MODEL_NAME", "{name}", "'{name}' is no name that fits into a path"),
        ("BERT_SERVED_MODEL_NAME", "a//b", "'a//b' is no name that fits into a path"),
        ("BERT_API_KEY_FILE", "/nowhere", "No such file"),
        ("BERT_API_KEY_FILE", "/dev/null", "it is not a regular file"),
        ("BERT_API_KEY_FILE", sys.executable, "is not UTF-8"),
        ("BERT_CORS_ORIGINS", "page.example", "'page.example' is no origin"),
        ("BERT_CORS_ORIGINS", "https://page.example/path", "is no origin"),
        ("BERT_TIMEOUT", "1", r"unknown setting BERT_TIMEOUT \(did you mean BERT_TIMEOUT_MS\?\); known are "),
        ("BERT_XYZZY", "1", "unknown setting BERT_XYZZY; known are BERT_ACCESS_LOG, "),
        ("BERT_PORT", "http", "BERT_PORT: http is not a whole number from 0 to 65535"),
        ("BERT_TRUNCATE", "maybe", "BERT_TRUNCATE: maybe is not true or false"),
        ("BERT_POOLING", "max", "BERT_POOLING: max is not one of cls, mean, pooler, sentence"),
        ("BERT_TIMEOUT_MS", "0", "BERT_TIMEOUT_MS: "),
        ("BERT_MAX_WAIT_SECONDS", "nan", "BERT_MAX_WAIT_SECONDS: nan is not a number above 0"),
        ("BERT_HOST", "", "BERT_HOST: it is empty"),  # would listen on every interface
        ("BERT_MODEL", " ", "BERT_MODEL: it is empty"),
        ("BERT_API_KEY", "secret\n", "BERT_API_KEY: "),
        ("BERT_API_KEY", "sec\x07ret", "BERT_API_KEY: "),
        ("BERT_TOKEN_BUDGET", "300000", "BERT_MAX_WAITING_TOKENS is below BERT_TOKEN_BUDGET"),
        ("BERT_TIMEOUT_MS", "3600001", "BERT_TIMEOUT_MS: 3600001 is not a whole number from 1 to 3600000"),
        ("BERT_MODELS", "a=b/c", "BERT_MODEL and BERT_MODELS are both set: leave one out"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc': traces are sent as http/proto"),
        *((f"BERT_SERVICE_{name}", "10.0.0.1", rf"unknown setting BERT_SERVICE_{name}; {LINKED}") for name in LINKS),
        ("BERT_ADMIN_KEY", "k" * 19, "BERT_ADMIN_KEY: it has 19 characters, and at least 20 are needed"),
    ],
)
def test_what_is_unknown_or_wrong_is_named(name: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        Settings.from_environment(GOOD | COLLECTOR | {name: value})


@pytest.mark.parametrize("name", sorted(GONE))
def test_a_setting_that_is_gone_is_refused_with_what_became_of_it(name: str) -> None:
    flag = f"--{name.removeprefix('BERT_').lower().replace('_', '-')}"
    for given in ({name: "5"}, {name: ""}, variables_of([flag]), variables_of([f"{flag}=5"])):
        with pytest.raises(SettingsError) as raised:
            Settings.from_environment(GOOD | given)
        assert str(raised.value) == f"{name} is no setting any more: {GONE[name]}; unset it"


def test_what_became_of_a_gone_setting_names_settings_that_exist() -> None:
    known = {f"BERT_{name.upper()}" for name in Settings.model_fields}
    assert not known & set(GONE)
    assert {name for sentence in GONE.values() for name in re.findall(r"BERT_[A-Z_]+", sentence)} <= known


def test_a_key_for_swaps_is_no_api_key(tmp_path: Path) -> None:
    key, of_clients = "k" * 20, "BERT_ADMIN_KEY: it is an API key too"
    (file := tmp_path / "keys").write_text(f"another\n{key}\n")
    assert Settings.from_environment(GOOD | {"BERT_ADMIN_KEY": key, "BERT_API_KEY": f"{key}x"}).admin_key == key
    for keys in ({"BERT_API_KEY": f"another, {key}"}, {"BERT_API_KEY_FILE": str(file)}):
        with pytest.raises(SettingsError, match=of_clients):
            Settings.from_environment(GOOD | {"BERT_ADMIN_KEY": key} | keys)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("a: {model: x, wieght: 0.1}", "a: wieght: unknown key, known are model, of, weight, shadow; write NAME"),
        ("a: {model: x, weight: 2}", "a: weight: Input should be less than or equal to 1; write NAME: MODEL or"),
        ("a: {model: [x]}", "a: model: Input should be a valid string; write NAME: MODEL or NAME: {model: MODEL"),
        ("a: x\na: y", "a is named twice"),
        ("a: {model: x, model: y}", "a has a key twice; write NAME: MODEL or NAME: {model: MODEL"),
        ("a: {model: x, weight: 0.1}", "a: weight and shadow are shares of the requests of another model: name it in"),
        ("a: x\nb: {model: x, of: c}", "b: of is 'c', which is not one of the models without of: a"),
        ("a: x\nb: {model: x, of: b}", "b: of is 'b', which is not one of the models without of: a"),
        (
            "a: x\nb: {model: x, of: a, weight: 0.6}\nc: {model: x, of: a, shadow: 0.6}",
            "b: the shares of the requests for a are 1.2 together: at most 1",
        ),
        ("a b: x", "'a b' is no name that fits into a path; write NAME: MODEL or NAME: {model: MODEL"),
        ("a: x\na/embed: y", "a/embed begins with a/, so paths of a would lead to it: choose another name; write"),
        ("a=x\n", " names no model; write NAME: MODEL or NAME: {model: MODEL"),
        ("a: {x", " is neither NAME=MODEL nor a YAML file: "),
    ],
)
def test_a_wrong_file_of_models_stops_the_start(tmp_path: Path, content: str, fault: str) -> None:
    (file := tmp_path / "models.yaml").write_text(content)
    with pytest.raises(SettingsError) as raised:
        Settings.from_environment({"BERT_MODELS": str(file)})
    assert str(raised.value).startswith(f"BERT_MODELS: {file}")
    assert fault in str(raised.value)


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"BERT_PRECISION: .*; BERT_PORT: .*; BERT_THREADS: "):
        Settings.from_environment({"BERT_PRECISION": "half", "BERT_PORT": "x", "BERT_THREADS": "-1"})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.from_environment(GOOD).port = 1  # type: ignore[misc]
