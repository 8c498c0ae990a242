"""Any content of a file is exported, described or refused with an ExportError: no other exception, no crash."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from packbert.model_export.checkpoint import read_json
from packbert.model_export.describe import describe_checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.model_export.facts import CONFIG
from packbert.model_export.families import FAMILIES, architecture_of
from packbert.model_export.tokenizer import read_tokenizer
from tests.export.goldens import edit, write_json
from tests.paths import GOLDEN

INVALID: tuple[Any, ...] = (None, -1, 0, 1, 10**9, 1.5, "768", "", [], {}, True, [1])
FILES = {
    "bert": ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"),
    "roberta": ("vocab.json", "merges.txt"),
    "albert": ("tokenizer.json",),
    "bert-labels": ("tokenizer.json", "config.json"),
}


def copy_for(file: str, name: str, folder: Path) -> None:
    """Copies a golden checkpoint to damage `file`; without its tokenizer, whose check is slow, for others."""
    shutil.copytree(GOLDEN / name, folder)
    if file in ("config.json", "model.safetensors"):
        for other in ("vocab.txt", "tokenizer.json"):
            (folder / other).unlink(missing_ok=True)


def description_of(folder: Path) -> str:
    """The description, or the message of the refusal; any other exception fails the test."""
    try:
        return str(describe_checkpoint(folder))
    except ExportError as error:
        return str(error)


def tokenizer_of(folder: Path) -> str:
    """All that an export takes from the tokenizer's files of a changed golden BERT. Raises ExportError as it does."""
    config = read_json(folder / "config.json")
    sizes, family = architecture_of(config), FAMILIES["bert"]
    read = read_tokenizer(folder, {CONFIG: config}, family, size=sizes.vocabulary, positions=sizes.positions)
    return repr((read.tokenizer.to_str(), read.special_tokens, read.max_tokens, read.source, read.assumed))


@pytest.fixture(scope="module")
def exported_tokenizers() -> set[str]:
    """Those of the artifacts that were exported."""
    return set()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_config_with_an_invalid_value_is_described_or_refused(family: str) -> None:
    config = read_json(GOLDEN / family / "config.json")
    for key in config:
        for value in INVALID:
            try:
                architecture = architecture_of(config | {key: value})
            except ExportError:
                continue
            assert architecture.hidden % architecture.heads == 0
            assert architecture.positions >= 3


@pytest.mark.parametrize("key", ["id2label", "architectures", "problem_type", "num_labels", "_name_or_path"])
def test_an_invalid_value_about_labels_is_described_or_refused(key: str, tmp_path: Path) -> None:
    copy_for("config.json", "bert-labels", tmp_path / "checkpoint")
    for value in INVALID:
        edit(tmp_path / "checkpoint" / "config.json", **{key: value})
        assert describe_checkpoint(tmp_path / "checkpoint").found


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
@pytest.mark.parametrize(
    "key",
    [
        "model_max_length",
        "max_len",
        "do_lower_case",
        "strip_accents",
        "cls_token",
        "added_tokens_decoder",
        "additional_special_tokens",
        "model_input_names",
        "tokenizer_class",
    ],
)
def test_an_invalid_value_about_the_tokenizer_is_exported_or_refused(
    key: str, file: str, tmp_path: Path, exported_tokenizers: set[str]
) -> None:
    """Values that make no difference to the tokenizer are exported once: the export reads these files for it only."""
    shutil.copytree(GOLDEN / "bert", tmp_path / "checkpoint")
    for value in (*INVALID, {"1": {}}, {"1": 1}, {"content": 1}):
        write_json(tmp_path / "checkpoint" / file, {key: value})
        shutil.rmtree(tmp_path / "artifact", ignore_errors=True)
        try:
            if (tokenizer := tokenizer_of(tmp_path / "checkpoint")) in exported_tokenizers:
                continue
            manifest = export(tmp_path / "checkpoint", tmp_path / "artifact")
        except ExportError:
            continue
        assert 3 <= manifest.max_tokens <= 144
        exported_tokenizers.add(tokenizer)


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in FILES.items() for file in files])
def test_a_file_that_is_cut_or_has_an_inverted_byte_is_described_or_refused(
    name: str, file: str, tmp_path: Path
) -> None:
    copy_for(file, name, tmp_path / "checkpoint")
    content = (GOLDEN / name / file).read_bytes()
    places = [min(len(content) * n // 20 + n % 3, len(content) - 1) for n in range(20)]
    damaged = [content[: len(content) * tenth // 10] for tenth in range(10)]
    damaged += [content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :] for at in places]
    for one in damaged:
        (tmp_path / "checkpoint" / file).write_bytes(one)
        assert description_of(tmp_path / "checkpoint")
