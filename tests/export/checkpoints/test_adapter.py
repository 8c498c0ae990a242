"""A LoRA adapter is merged into its base: W + alpha / r * B A."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.__main__ import main
from packbert.model_export.artifact.manifest import Manifest
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.sentence import sentence_model
from tests.checkpoints import checkpoint
from tests.export.goldens import write_json
from tests.paths import GOLDEN

RANK = 4
WRAPPER = "base_model.model."
QUERY = "bert.encoder.layer.0.attention.self.query"
Arrays = dict[str, np.ndarray]
MODULES = {
    "bert": ("bert.", "encoder.layer.0.attention.self.query", "encoder.layer.1.output.dense"),
    "roberta": ("roberta.", "encoder.layer.0.attention.self.value", "encoder.layer.2.intermediate.dense"),
    "deberta-v2": ("deberta.", "encoder.layer.0.attention.self.query_proj", "encoder.layer.1.attention.output.dense"),
}
REFUSED: dict[str, tuple[dict[str, Any], Callable[[Arrays], Arrays], str]] = {  # settings, changed arrays, sentence
    "IA3": ({"peft_type": "IA3"}, dict, "holds an adapter of type IA3; only LORA is merged here"),
    "DoRA": ({"use_dora": True}, dict, "sets use_dora, and only plain LoRA is merged here"),
    "a base that is changed": ({"init_lora_weights": "pissa"}, dict, "sets init_lora_weights to 'pissa'"),
    "no number": ({"lora_alpha": "8"}, dict, "sets lora_alpha to '8'; it must be a number"),
    "no base": (
        {"base_model_name_or_path": None},
        dict,
        "is an adapter of an unnamed base: name its folder with --base",
    ),
    "other arrays": ({}, lambda one: {f"{n}x": a for n, a in one.items()}, "holds bert.encoder.layer.0"),
    "a missing layer": ({}, lambda one: {n.replace(".0.", ".9."): a for n, a in one.items()}, "base does not have"),
    "another shape": (
        {},
        lambda one: {n: a[:, : 2 if "_A" in n else 4] for n, a in one.items()},
        "has the shape [32, 32]",
    ),
}


def write_adapter(folder: Path, base: Path | str, arrays: Arrays, **config: object) -> Path:
    folder.mkdir()
    stated = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": RANK, "lora_alpha": 6} | config
    write_json(folder / "adapter_config.json", stated)
    save_file({WRAPPER + name: array for name, array in arrays.items()}, folder / "adapter_model.safetensors")
    return folder


def factors(name: str, *modules: str) -> Arrays:
    """Random A and B for the weights of these modules of a golden checkpoint."""
    random, found, base = np.random.default_rng(3), Arrays(), load_file(GOLDEN / name / "model.safetensors")
    for module in modules:
        out, width = base[f"{module}.weight"].shape
        for side, shape in (("A", (RANK, width)), ("B", (out, RANK))):
            found[f"{module}.lora_{side}.weight"] = random.normal(0, 0.3, shape).astype(np.float32)
    return found


def product(arrays: Arrays, module: str) -> np.ndarray:
    return arrays[f"{module}.lora_B.weight"] @ arrays[f"{module}.lora_A.weight"]


def loaded(checkpoint: Checkpoint, name: str, like: np.ndarray) -> np.ndarray:
    return checkpoint.weight(name, shape=like.shape).load()


@pytest.mark.parametrize("family", sorted(MODULES))
@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 1.5),
        ({"use_rslora": True, "init_lora_weights": True}, 3.0),
        ({"fan_in_fan_out": True, "init_lora_weights": False}, 1.5),
        ({"alpha_pattern": {"encoder.*": 20}}, 5.0),
    ],
)
def test_the_product_is_added_with_the_scale_of_the_config(
    family: str, settings: dict[str, Any], scale: float, tmp_path: Path
) -> None:
    prefix, *modules = MODULES[family]
    base = load_file(GOLDEN / family / "model.safetensors")
    names = [prefix + module for module in modules]
    arrays = factors(family, *names)
    merged = Checkpoint(write_adapter(tmp_path / "adapter", GOLDEN / family, arrays, **settings))
    for name in names:
        weight = base[f"{name}.weight"]
        np.testing.assert_allclose(
            loaded(merged, f"{name}.weight", weight), weight + scale * product(arrays, name), atol=1e-6
        )
    assert merged.names == base.keys()


def test_the_product_for_a_table_is_transposed(tmp_path: Path) -> None:
    base, name = load_file(GOLDEN / "bert" / "model.safetensors"), "bert.embeddings.word_embeddings"
    table, random = base[f"{name}.weight"], np.random.default_rng(3)
    first, second = (random.normal(0, 1, shape).astype(np.float32) for shape in ((RANK, len(table)), (32, RANK)))
    arrays = {f"{name}.lora_embedding_A": first, f"{name}.lora_embedding_B": second}
    merged = Checkpoint(write_adapter(tmp_path / "adapter", GOLDEN / "bert", arrays))
    expected = table + 1.5 * (second @ first).T
    np.testing.assert_allclose(loaded(merged, f"{name}.weight", table), expected, atol=1e-5)


@pytest.mark.parametrize("has_prefix", [(False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize(
    ("base", "prefix", "name"),
    [
        ("bert", "bert.", "encoder.layer.0.attention.self.query"),
        ("nomic_bert", "nomic_bert.", "encoder.layers.0.attn.Wqkv"),
        ("nomic-published", "bert.", "encoder.layers.0.attn.Wqkv"),
    ],
)
def test_the_base_or_its_adapter_may_have_no_prefix_of_the_family(
    base: str, prefix: str, name: str, has_prefix: tuple[bool, bool], tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / base, tmp_path / "base")
    weights = load_file(GOLDEN / base / "model.safetensors")
    arrays, of_base, of_adapter = factors(base, prefix + name), *(prefix * has for has in has_prefix)
    encoder = {of_base + key.removeprefix(prefix): one for key, one in weights.items() if key.startswith(prefix)}
    save_file(encoder, tmp_path / "base" / "model.safetensors")
    added = {of_adapter + key.removeprefix(prefix): one for key, one in arrays.items()}
    weight = weights[f"{prefix}{name}.weight"]
    merged = Checkpoint(write_adapter(tmp_path / "adapter", tmp_path / "base", added))
    found = loaded(merged, f"{of_base}{name}.weight", weight)
    np.testing.assert_allclose(found, weight + 1.5 * product(arrays, prefix + name), atol=1e-6)


def test_an_adapter_with_a_classifier_is_exported_over_the_named_base(tmp_path: Path) -> None:
    arrays = factors("bert", QUERY)
    arrays |= {"classifier.weight": np.ones((4, 32), np.float32), "classifier.bias": np.zeros(4, np.float32)}
    folder = write_adapter(tmp_path / "adapter", "elsewhere/unknown", arrays, task_type="TOKEN_CLS")
    assert main([str(folder), str(tmp_path / "artifact"), "--base", str(GOLDEN / "bert")]) == 0
    manifest = Manifest.read(tmp_path / "artifact" / "cpu")
    assert "tags" in manifest.heads
    assert manifest.labels == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")
    assert manifest.name == "adapter"


def test_modules_and_tokenizer_beside_an_adapter_replace_the_bases(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", GOLDEN / "bert", factors("bert", QUERY))
    assert Checkpoint(adapter).tokenizer_folder == GOLDEN / "bert"
    whole = checkpoint("sentence-transformers/prompts", tmp_path / "whole")
    for path in whole.iterdir():  # what sentence-transformers saves, without the encoder of the base
        if path.is_dir():
            shutil.copytree(path, adapter / path.name)
        elif path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, adapter)
    found = Checkpoint(adapter)
    assert (found.root, found.tokenizer_folder, found.folder) == (adapter, adapter, GOLDEN / "bert")
    assert sentence_model(found, 32) == sentence_model(Checkpoint(whole), 32)
    assert sentence_model(found, 32) != sentence_model(Checkpoint(GOLDEN / "bert"), 32)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_another_adapter_or_that_of_another_base_is_refused(name: str, tmp_path: Path) -> None:
    settings, change, fault = REFUSED[name]
    folder = write_adapter(tmp_path / "adapter", GOLDEN / "bert", change(factors("bert", QUERY)), **settings)
    with pytest.raises(ExportError, match=re.escape(fault)):
        Checkpoint(folder)
