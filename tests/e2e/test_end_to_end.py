"""The two commands as a user types them: export a checkpoint, serve it, send requests, stop it under load."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.paths import SAMPLE
from tests.serving import fail_to_serve, running


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model, exported by the command."""
    folder = tmp_path_factory.mktemp("sample") / "artifact"
    command = [sys.executable, "-m", "packbert", "export", str(SAMPLE), str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert f"wrote {folder / 'cpu'}" in finished.stdout
    return folder


def test_the_bundled_model_gives_sensible_answers_for_all_three_tasks(artifact: Path) -> None:
    with running({"BERT_MODEL": str(artifact)}) as (_, client):
        texts = ["She was ill, so she went to see a [MASK].", "这本书很有[MASK]思。"]
        words = client.post("/fill-mask", json={"inputs": texts, "top_k": 1}).json()
        assert [one[0]["token_str"] for one in words] == ["doctor", "意"]
        ends = ["Then it fell asleep in the sun.", "The stock market fell by two percent."]
        pairs = [{"text": "The cat sat on the mat.", "text_pair": end} for end in ends]
        scores = client.post("/nsp", json={"inputs": pairs}).json()
        assert [one["label"] for one in scores] == ["is_next", "not_next"]
        assert scores[0]["is_next"] + scores[0]["not_next"] == pytest.approx(1.0)
        texts = [
            "A man is playing a guitar.",
            "Someone plays the guitar.",
            "一个男人在弹吉他。",
            "The stock market fell.",
        ]
        guitar, *others = client.post("/embed", json={"inputs": texts, "normalize": True}).json()
        same, translated, unrelated = (sum(a * b for a, b in zip(guitar, other, strict=True)) for other in others)
        assert min(same, translated) > 0.5 > unrelated


def test_sigterm_under_load_answers_every_request_and_exits_with_0(artifact: Path) -> None:
    texts = [["word " * 100] * 10 for _ in range(8)]
    with running({"BERT_MODEL": str(artifact), "BERT_TOKEN_BUDGET": "256"}) as (process, client):
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(client.post, "/embed", json={"inputs": inputs}) for inputs in texts]
            while 'bert_queue_requests_total{outcome="received"} 8.0' not in client.get("/metrics").text:
                pass
            exit_code = process.terminate()
            answers = [one.result() for one in waiting]
        assert [answer.status_code for answer in answers] == [200] * 8
        assert exit_code == 0


def test_a_damaged_artifact_stops_the_start(artifact: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(artifact, damaged)
    weights = damaged / "cpu" / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    finished = fail_to_serve({"BERT_MODEL": str(damaged)})
    assert finished.returncode == 2
    assert "SHA-256" in finished.stderr
