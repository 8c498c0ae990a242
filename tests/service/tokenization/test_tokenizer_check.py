"""A tokenizer that fails on a text fails only that request."""

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.model_export.artifact.manifest import TOKENIZER, Manifest, sha256
from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid, TokenizerFailed
from packbert.service.tokenization.check import guard
from packbert.service.tokenization.encoding import EncodeOptions
from packbert.service.tokenization.tokenizer import Tokenizer

PLAIN = EncodeOptions(outputs=frozenset({"cls"}))
HIDDEN_FAULT = "((ⵣ.ⵥ)+)+$"  # exponential
FAILING = "ⵣxⵥ" * 40 + "!"


def with_tokenizer(artifact: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the artifact with another tokenizer.json, whose checksum is right."""
    shutil.copytree(artifact, folder)
    path = folder / "cpu" / TOKENIZER
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")
    manifest = Manifest.read(folder / "cpu")
    dataclasses.replace(manifest, files={**manifest.files, TOKENIZER: sha256(path)}).write(folder / "cpu")
    return folder


def split(pattern: str) -> Callable[[dict[str, Any]], None]:
    """Splits a text by this regular expression."""
    splitter = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return lambda content: content.update(pre_tokenizer=splitter)


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_panic_of_the_tokenizer_is_a_500_with_the_index_and_the_next_request_is_answered(
    processes: str, bert_artifact: Path, tmp_path: Path
) -> None:
    folder = with_tokenizer(bert_artifact, tmp_path / "artifact", split(HIDDEN_FAULT))
    settings = {"BERT_ARTIFACT": str(folder), "BERT_API_PROCESSES": processes}
    with ServiceProcess(settings) as process, httpx.Client(base_url=process.url, timeout=60) as client:
        for text in (FAILING, FAILING + " long" * 500):  # on the event loop, on the tokenizer's thread
            response = client.post("/embed", json={"inputs": ["cat", text, "dog"], "truncate": True})
            assert response.status_code == 500
            error = response.json()
            assert (error["code"], error["index"]) == ("tokenizer_failed", 1)
            assert "the tokenizer failed on this input (PanicException: Onig: Regex search error" in error["error"]
            assert error["request_id"]
        response = client.post("/fill-mask", json={"inputs": "the [MASK]", "targets": [FAILING]})
        assert (response.status_code, response.json()["code"]) == (500, "tokenizer_failed")
        assert client.post("/embed", json={"inputs": ["cat"]}).status_code == 200


def test_an_interrupt_is_not_taken_for_a_failure_of_the_tokenizer() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard(interrupted)


def test_an_exception_of_the_library_names_the_first_text_that_fails_alone(bert_artifact: Path, tmp_path: Path) -> None:
    def no_unknown(content: dict[str, Any]) -> None:
        content["model"]["unk_token"] = "[NOPE]"

    tokenizer = Tokenizer(open_artifact(with_tokenizer(bert_artifact, tmp_path / "a", no_unknown)), 1000)
    tokenizer.open()
    with pytest.raises(TokenizerFailed, match="WordPiece error") as caught:
        asyncio.run(tokenizer.encode(["cat", "dog", "ⵣ", "ⵣ"], PLAIN, None))
    assert caught.value.index == 2
    tokenizer.close()


@pytest.mark.parametrize("truncate", ["right", "left", None])
def test_a_limit_that_leaves_no_room_for_a_pair_is_named(bert_artifact: Path, truncate: Any) -> None:
    """It was called empty."""
    artifact = open_artifact(bert_artifact)
    small = dataclasses.replace(artifact, manifest=dataclasses.replace(artifact.manifest, max_tokens=3))
    tokenizer = Tokenizer(small, 1000)
    tokenizer.open()
    assert len(tokenizer.encode_sync(["cat dog cat"], PLAIN, "right")[0].ids) == 3
    with pytest.raises(Invalid) as caught:
        tokenizer.encode_sync(["cat", ("cat", "dog")], PLAIN, truncate)
    assert (caught.value.code, caught.value.index) == ("too_long", 1)
    assert caught.value.message == (
        "this model takes at most 3 tokens, and a pair has 3 special tokens: there is no room for two texts, "
        "truncated or not"
    )
    tokenizer.close()
