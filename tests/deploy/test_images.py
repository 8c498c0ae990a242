"""What the images are made of: files, locked packages and the health check. `with_images.py` builds and runs them."""

import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml

from tests.paths import ROOT

DOCKER = ROOT / "docker"
LOCKS = DOCKER / "locks"
DOCKERFILE = (DOCKER / "Dockerfile").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OURS = ("service", "models", "export", "serve")  # the services of compose that this repository builds
SERVING = ("service", "models", "serve")
HEALTH_CHECK = DOCKER / "healthcheck.py"


def packages(lock: str) -> dict[str, set[str]]:
    """The versions of each package in a lock file; more than one where they depend on Python's version."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==([^ ]+)", (ROOT / lock).read_text("utf-8"), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.lock")), ids=lambda path: path.stem)
def test_packages_of_images_have_hashes_and_the_tested_versions(path: Any) -> None:
    tested, locked = packages("requirements-dev.lock"), packages(str(path.relative_to(ROOT)))
    text = path.read_text("utf-8")
    assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=\S)", text))
    images_only = {name for name in locked if name in ("pip", "setuptools") or name.startswith("nvidia-")}
    other = {name: versions for name, versions in locked.items() if not versions <= tested.get(name, set())}
    assert set(other) <= images_only


def test_the_serving_images_hold_no_exporter_one_onnx_runtime_and_the_libraries_it_loads() -> None:
    cpu, cuda, service, export = (
        set(packages(f"docker/locks/{name}.lock")) for name in ("runtime-cpu", "runtime-cuda", "service", "export")
    )
    assert "huggingface-hub" in export
    assert {"huggingface-hub", "onnx", "safetensors", "tqdm"} & (cpu | cuda | service) == set()
    runtimes = [{name for name in lock if name.startswith("onnxruntime")} for lock in (cpu, cuda, service, export)]
    assert runtimes == [{"onnxruntime"}, {"onnxruntime-gpu"}, set(), set()]
    libraries = {name.removeprefix("nvidia-") for name in cuda if name.startswith("nvidia-")}  # nvrtc: of cuBLAS
    assert libraries == {"cublas", "cuda-nvrtc", "cuda-runtime", "cudnn-cu13", "curand"}


def test_a_build_finds_every_file_that_it_copies() -> None:
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {name for words in sources for name in words.split()}
    kept = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {name for name in copied if "$" not in name and not (ROOT / name).exists()} == set()
    sent = {line.removeprefix("!") for line in kept if line.startswith("!")}
    assert {name for name in copied if not any(f"{name}/".startswith(f"{path}/") for path in sent)} == set()
    assert {path for path in sent if not any(f"{name}/".startswith(f"{path}/") for name in copied)} == set()


def test_labels_and_wheels_have_the_licences_of_the_package_with_their_texts() -> None:
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-SA-4.0"
    labels = re.findall(r'image\.licenses="(.+)"', DOCKERFILE)
    assert labels == [PROJECT["license"]] * 3
    texts = [(ROOT / name).read_text("utf-8") for name in PROJECT["license-files"]]
    assert [text.split()[:3] for text in texts] == [
        ["Apache", "License", "Version"],
        ["Creative", "Commons", "Attribution-ShareAlike"],
    ]
    copied = re.findall(r"^COPY (pyproject.toml .+) /source/$", DOCKERFILE, re.MULTILINE)
    assert [set(PROJECT["license-files"]) <= set(names.split()) for names in copied] == [True] * 3


@pytest.mark.parametrize("name", OURS)
def test_a_container_of_compose_writes_only_its_volumes_and_has_bounded_memory(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    folders = [volume for volume in service["volumes"] if isinstance(volume, dict)]
    assert all(volume["read_only"] and volume["bind"] == {"create_host_path": False} for volume in folders)
    named = [volume.split(":") for volume in service["volumes"] if isinstance(volume, str)]
    assert {volume for volume, *_ in named} <= set(COMPOSE["volumes"])
    assert service["mem_limit"] == service["memswap_limit"] == "${MEMORY:-4g}"


def test_compose_passes_the_variables_of_traces_and_publishes_on_this_machine() -> None:
    texts = [(ROOT / path).read_text("utf-8") for path in ("service/settings.py", "docs/operate/index.md")]
    named = set(re.findall(r"OTEL_\w+[A-Z]", " ".join(texts)))
    assert len(named) > 5
    for name in SERVING:
        assert named <= set(COMPOSE["services"][name]["environment"])
        assert COMPOSE["services"][name]["ports"] == ["${BERT_HOST:-127.0.0.1}:${BERT_PORT:-8080}:8080"]


def health(host: str, port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", str(HEALTH_CHECK)]
    environment = {**os.environ, "BERT_HOST": host, "BERT_PORT": str(port)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """The port of a server that sends `answer` to the first connection and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_a_container_is_healthy_when_the_service_is_ready(server: httpx.Client) -> None:
    assert health("0.0.0.0", server.base_url.port or 0).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    found = health("127.0.0.1", port)
    assert (found.returncode, "refused" in found.stderr) == (1, True)


@pytest.mark.parametrize(
    ("answer", "reported"),
    [(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP/1.1 503"), (b"", "connection closed")],
)
def test_a_container_is_unhealthy_when_ready_is_not_200(answer: bytes, reported: str) -> None:
    with answering(answer) as port:
        found = health("127.0.0.1", port)
    assert found.returncode == 1
    assert found.stderr.strip() == f"/ready of 127.0.0.1:{port}: {reported}"
