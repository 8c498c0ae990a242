"""The images, run with compose as the README says, with a golden checkpoint.

`make test-images` builds and runs them where Docker is at hand; `make test` does not, because it need not be.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.harness.process import free_port
from tests.hub import REPOSITORY, FakeHub
from tests.paths import GOLDEN, ROOT
from tests.service.polling import until

MODEL = "bert"  # a folder in tests/golden
PROJECT = "bert-images-test"
COMPOSE = ("compose", "--project-name", PROJECT, "--profile", "stages", "--profile", "models")
MAX_CPU_BYTES = 350_000_000
IMAGES = {"export": "packbert-export:cpu", "serve": "packbert-serve:cpu", "service": "packbert:cpu"}
HOST_NETWORK = ROOT / "tests" / "deploy" / "host_network.yml"
ALONE = ("run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL")
# Imports all that the image serves with, and what that imports when it is first used; lists the packages that are left.
# The client has packages of its own, which no image holds.
UNUSED = """
import importlib, importlib.metadata as metadata, pkgutil, sys
from packbert import service
for module in pkgutil.walk_packages(service.__path__, "packbert.service."):
    name = module.name.removeprefix("packbert.service.")
    if not name.startswith(("library.client", "library.files")) and not name.endswith("__main__"):
        importlib.import_module(module.name)
import uvloop  # by the API workers' entry
import yaml  # by a file of models
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
OTLPSpanExporter()
used = set()
for name, packages in metadata.packages_distributions().items():
    if any(loaded == name or loaded.startswith(name + ".") for loaded in sys.modules):
        used.update(packages)
print(sorted({one.metadata["Name"] for one in metadata.distributions()} - used))
"""


def docker(*words: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of docker; raises AssertionError with what it printed where it fails and `check` is set."""
    environment = {**os.environ, "CHECKPOINTS": str(GOLDEN), "MODEL": MODEL, **variables}
    done = subprocess.run(
        ["docker", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def compose(*words: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    return docker(*COMPOSE, *words, check=check, **variables)


def inspect(name: str) -> dict[str, Any]:
    """What docker knows of an image or a container."""
    content: dict[str, Any] = json.loads(docker("inspect", name).stdout)[0]
    return content


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    compose("down", "--volumes")
    yield
    compose("down", "--volumes")


@pytest.fixture(scope="module")
def port() -> str:
    return str(free_port())


@pytest.fixture(scope="module")
def served(port: str) -> Iterator[httpx.Client]:
    """In two stages: the artifact exported into a volume, and a service of it; a client of the service."""
    compose("run", "--rm", "export")
    compose("up", "--detach", "--wait", "serve", BERT_PORT=port)  # until its health check has passed
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client
    compose("rm", "--stop", "--force", "serve")


def python(name: str, program: str) -> str:
    """What a program prints in an image."""
    return docker("run", "--rm", "--network=none", "--entrypoint=python", IMAGES[name], "-c", program).stdout


def end(name: str) -> None:
    docker("kill", "--signal=TERM", name)
    assert docker("wait", name).stdout.strip() == "0"


def container(service: str) -> str:
    return compose("ps", "--quiet", "--all", service).stdout.strip()


def test_the_images_have_the_sizes_that_the_page_prints() -> None:
    sizes = {image.removesuffix(":cpu"): inspect(image)["Size"] for image in IMAGES.values()}
    assert sizes["packbert-serve"] <= MAX_CPU_BYTES
    for page in ("machine.md", "machine.zh.md"):
        text = (ROOT / "docs" / "operate" / page).read_text("utf-8")
        printed = dict(re.findall(r"^\| `(packbert[\w-]*)` .*?\| (\d+) MB \|", text, re.MULTILINE))
        assert all(abs(size / 10**6 / int(printed[name]) - 1) < 0.05 for name, size in sizes.items()), sizes


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_has_labels_a_user_without_rights_and_nothing_that_built_it(name: str) -> None:
    config = inspect(IMAGES[name])["Config"]
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    assert {"title", "description", "licenses", "version", "revision", "base.name"} <= set(labels)
    assert "unknown" not in labels.values()
    assert labels["licenses"] == "Apache-2.0 AND CC-BY-SA-4.0"
    assert (config["User"], config["Entrypoint"]) == ("10001", ["packbert", *({name} - {"service"})])
    listing = "import importlib.metadata as m; print(*(one.metadata['Name'] for one in m.distributions()))"
    assert not {"pip", "setuptools"} & set(python(name, listing).split())


def test_the_serving_image_holds_only_what_the_service_imports() -> None:
    assert python("serve", UNUSED).strip() == "[]"


def test_the_service_answers_in_a_container_without_rights_and_sigterm_ends_it(served: httpx.Client, port: str) -> None:
    assert served.get("/info").json()["model"] == MODEL
    answer = served.post("/embed", json={"inputs": ["my dog is hairy"]})
    assert answer.status_code == 200, answer.text
    assert compose("port", "serve", "8080").stdout.strip() == f"127.0.0.1:{port}"  # open on this machine only
    name = container("serve")
    assert docker("exec", name, "id", "-u").stdout.strip() == "10001"
    for path in ("/opt/venv/new", "/artifacts/new", "/data/new"):
        refused = docker("exec", name, "touch", path, check=False)
        assert "Read-only file system" in refused.stderr
    end(name)


@pytest.mark.parametrize("name", ["export", "service"])
def test_a_mistyped_folder_of_checkpoints_is_refused_and_not_created(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "chekpoints"
    refused = compose("run", "--rm", name, check=False, CHECKPOINTS=str(missing))
    assert refused.returncode != 0
    assert f"{missing}" in refused.stderr
    assert "does not exist" in refused.stderr
    assert not missing.exists()


def test_one_command_exports_a_checkpoint_and_finds_it_at_the_next_start(port: str) -> None:
    for _ in range(2):
        compose("up", "--detach", "--wait", "--force-recreate", "service", BERT_PORT=port)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/info").json()["model"] == MODEL
            assert client.post("/embed", json={"inputs": "hello"}).status_code == 200
    log = docker("logs", container("service")).stderr
    assert "exported before, in /data/packbert/artifacts/" in log
    end(container("service"))


def test_models_of_a_file_answer_and_a_signal_swaps_what_changed(port: str, tmp_path: Path) -> None:
    for name in (MODEL, "distilbert", "electra"):
        shutil.copytree(GOLDEN / name, tmp_path / name)
    tmp_path.chmod(0o755)  # the container has a user of its own
    file = tmp_path / "models.yaml"
    file.write_text(f"first: {MODEL}\nsecond: distilbert\n", "utf-8")
    variables = {"BERT_PORT": port, "BERT_MODELS": file.name, "CHECKPOINTS": str(tmp_path)}
    compose("up", "--detach", "--wait", "models", check=True, **variables)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert client.get("/ready").json()["models"] == {"first": "ready", "second": "ready"}
        assert client.get("/models/second/info").json()["family"] == "distilbert"
        file.write_text(f"first: {MODEL}\nsecond: electra\n", "utf-8")
        docker("exec", container("models"), "sh", "-c", "kill -HUP 1")
        until(lambda: client.get("/models/second/info").json()["family"] == "electra")
    compose("rm", "--stop", "--force", "models")


def test_one_command_serves_a_hub_id_and_later_needs_no_hub(port: str) -> None:
    """The hub is on 127.0.0.1, so the container has the network of this machine."""
    checkpoint = {path.name: path.read_bytes() for path in (GOLDEN / MODEL).iterdir()}
    files = [word for path in ("docker-compose.yml", HOST_NETWORK) for word in ("--file", str(path))]
    up = [*files, "up", "--detach", "--wait", "--force-recreate", "service"]
    with FakeHub(checkpoint, token="hf_secret").serve() as hub:
        variables = {"MODEL": f"{REPOSITORY}@v1", "HF_ENDPOINT": hub.url, "BERT_PORT": port}
        for more in ({"HF_TOKEN": hub.token}, {"HF_HUB_OFFLINE": "1"}):
            hub.requests.clear()
            compose(*up, check=True, **variables, **more)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                assert client.get("/info").json()["model"] == REPOSITORY
                assert len(client.post("/embed", json={"inputs": "hello"}).json()[0]) == 32
            assert bool(hub.requests) == ("HF_TOKEN" in more)
    compose("rm", "--stop", "--force", "service")


@pytest.mark.usefixtures("served")  # its artifact
def test_bulk_answers_a_file_in_the_image_of_the_one_command(tmp_path: Path) -> None:
    source, shared = tmp_path / "in.txt", tmp_path / "shared"
    source.write_text("my dog is hairy\nit rains\n", "utf-8")
    shared.mkdir()
    shared.chmod(0o777)  # the container has a user of its own
    mounts = [
        f"--volume={source}:/in.txt:ro",
        f"--volume={shared}:/shared",
        f"--volume={PROJECT}_artifacts:/artifacts:ro",
    ]
    docker(*ALONE, *mounts, IMAGES["service"], "bulk", "/in.txt", "/shared/out.npy", f"--model=/artifacts/{MODEL}")
    assert np.load(shared / "out.npy").shape == (2, 32)


@pytest.mark.parametrize(
    ("words", "code", "fault"),
    [
        ((*ALONE, IMAGES["service"], "serve", REPOSITORY), 1, f"{REPOSITORY} is not a local folder and could not be"),
        ((*ALONE, "--entrypoint=packbert", IMAGES["serve"], "export"), 2, "packbert.model_export.__main__ is not ins"),
        ((*COMPOSE, "run", "--rm", "export"), 2, "brt"),
    ],
)
def test_what_cannot_be_done_is_refused(words: tuple[str, ...], code: int, fault: str) -> None:
    """A hub id without a network, a command of another image, a mistyped model."""
    refused = docker(*words, check=False, MODEL="brt")
    assert refused.returncode == code
    assert fault in refused.stderr
