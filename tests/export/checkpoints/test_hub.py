"""A checkpoint by its hub id, from a local hub that implements the part of the protocol that a download needs."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from model_export.artifact.manifest import Manifest
from tests.paths import GOLDEN

MODULES = GOLDEN / "sentence-transformers" / "dense"
COMMIT, REPOSITORY = "a" * 40, "example/chinese-macbert-tiny"
FILES = {
    path.name: path.read_bytes()
    for path in sorted((GOLDEN / "bert").iterdir())
    if path.name not in ("expected.npz", "answers.json")
}
FILES |= {
    str(path.relative_to(MODULES)): path.read_bytes()
    for path in sorted(MODULES.rglob("*"))
    if path.is_file() and path.name != "answers.json"
}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        names = sorted({*FILES, "pytorch_model.bin", "tf_model.h5"})
        if self.path.startswith(f"/api/models/{REPOSITORY}/revision/v1"):
            self._json(
                {
                    "id": REPOSITORY,
                    "sha": COMMIT,
                    "siblings": [{"rfilename": name} for name in names],
                    "private": False,
                    "tags": [],
                }
            )
        elif self.path.startswith(f"/api/models/{REPOSITORY}/tree/{COMMIT}"):
            self._json([{"type": "file", "path": name, "size": 1, "oid": COMMIT} for name in names])
        else:
            self._file(body=True)

    def _json(self, content: object) -> None:
        self._answer(json.dumps(content).encode(), body=True)

    def do_HEAD(self) -> None:
        self._file(body=False)

    def _file(self, *, body: bool) -> None:
        found = FILES.get(self.path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/"))
        if found is None:
            self.send_error(404)
            return
        self._answer(found, body=body)

    def _answer(self, content: bytes, *, body: bool) -> None:
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def export_from(hub: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Exports the repository to `folder`/artifact, with `folder`/cache as the hub's cache."""
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "model_export", REPOSITORY, str(folder / "artifact"), "--revision", "v1"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr
    return finished


def test_a_repository_without_safetensors_is_downloaded_as_a_pickle(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FILES, "model.safetensors")
    monkeypatch.setitem(FILES, "pytorch_model.bin", (GOLDEN / "pickles" / "bert.bin").read_bytes())
    export_from(hub, tmp_path)
    heads = Manifest.read(tmp_path / "artifact" / "cpu").heads
    assert heads == ("cls", "mean", "tokens", "layers", "pooler", "pair", "fill_mask", "sentence")


def test_a_hub_id_is_downloaded_and_is_the_artifacts_name(hub: str, tmp_path: Path) -> None:
    finished = export_from(hub, tmp_path)
    manifest = Manifest.read(tmp_path / "artifact" / "cpu")
    assert manifest.name == REPOSITORY
    assert manifest.pair_labels == ("in_order", "swapped")  # by the repository's name
    assert manifest.embedding.pooling == "sentence"
    assert manifest.embedding.similarity == "cosine"  # of config_sentence_transformers.json
    assert "embeddings by default: Pooling(mean), Dense(32 to 16, Tanh), Normalize; 16 numbers" in finished.stdout
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".bin", ".h5")]
