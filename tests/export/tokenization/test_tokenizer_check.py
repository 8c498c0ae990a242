"""A tokenizer that would break the service is refused at export, whatever it does to the process that runs it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packbert.model_export.describe import describe_checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.model_export.tokenizer_check import ModelBounds, fault_of
from tests.paths import GOLDEN

Content = dict[str, Any]
LIMITS = ModelBounds(vocabulary=170, segments=2, max_tokens=144)


def template(content: Content, *, cls: int = 2, types: int = 1, repeat: int = 1) -> None:
    """A post-processor with [CLS] `repeat` times and of the id `cls`, and the second text of type `types`."""
    special = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in (("[CLS]", cls), ("[SEP]", 3))}
    first, sep = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
    single = [first] * repeat + [{"Sequence": {"id": "A", "type_id": 0}}, sep]
    pair = [*single, {"Sequence": {"id": "B", "type_id": types}}, sep]
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": special,
    }


def replace(content: Content, *pairs: tuple[str, str]) -> None:
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in pairs],
    }


BROKEN: dict[str, tuple[Callable[[Content], object], str]] = {
    "the id of [CLS] is outside the vocabulary": (
        lambda c: template(c, cls=9999),
        r"gives an ordinary text the id 9999 \(\[CLS\]\), but the model has only 170 word embeddings",
    ),
    "a type without a segment": (
        lambda c: template(c, types=7),
        "gives a pair the type id 7, but the model has only 2 segments",
    ),
    "601 special tokens": (
        lambda c: template(c, repeat=600),
        "adds 601 special tokens to a text, but the model takes at most 144 tokens",
    ),
    "an unknown token that is not there": (
        lambda c: c["model"].update(unk_token="[NOPE]"),
        r"fails on an? \w+ text \(exit code 1: .*Missing \[UNK\] token from the vocabulary",
    ),
    "200 KB for one letter": (
        lambda c: replace(c, ("a", "x" * 200_000)),
        r"makes \d+ characters of the \d+ of an ordinary text; at most 20 each",
    ),
    "200 KB for one rare character": (
        lambda c: replace(c, ("ⵣ", "x" * 200_000)),
        r"makes \d+ characters of the \d+ of a text of its own patterns; at most 20 each",
    ),
    "gigabytes for one letter": (
        lambda c: replace(c, ("a", "b" * 200_000), ("b", "c" * 2_000)),
        r"fails on an ordinary text \(SIGABRT: .*memory allocation of \d+ bytes failed.*; 2 GiB of memory are allowed",
    ),
    "no text is left": (
        lambda c: replace(c, *((chr(n), "") for n in (*range(33, 127), *map(ord, "éΩß北京🙂")))),
        "gives an ordinary text no tokens of its own",
    ),
}


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_broken_tokenizer_is_refused_at_export_and_in_the_description(what: str, tmp_path: Path) -> None:
    change, sentence = BROKEN[what]
    folder = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN / "bert-labels", folder)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(ExportError, match=f"the tokenizer in tokenizer.json cannot be used: it {sentence}"):
        export(folder, tmp_path / "artifact")
    assert not (tmp_path / "artifact").exists()
    assert len(describe_checkpoint(folder).refused) == 1


def test_a_tokenizer_that_computes_for_ever_is_ended_by_its_limit(tmp_path: Path) -> None:
    """The child asserts the limit of the check and lowers it, so that the test is short."""
    fault = fault_of(tmp_path / "tokenizer.json", LIMITS, module="tests.export.tokenization.spinning_child")
    assert fault == "takes more than 20 s of CPU time for its file"


def test_a_child_that_cannot_start_is_a_fault(tmp_path: Path) -> None:
    fault = fault_of(tmp_path / "tokenizer.json", LIMITS, module="tests.no_such_module")
    assert "fails on its start (exit code 1: " in fault
