"""A fact that several files state is read in the order of the libraries, and the report says if they differ."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from packbert.model_export.artifact.special_tokens import own_special_tokens
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.facts import COLBERT, FACTS
from packbert.model_export.families import architecture_of, family_of
from packbert.model_export.labels import relevance_scores
from packbert.model_export.sentence import embedding_model
from packbert.model_export.tokenizer import read_tokenizer
from tests.stated import FILE, MODULES, build

STATED: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
ROWS = [(fact, row) for fact, one in STATED.items() for row in one["rows"]]
OF_A_CLASS = ("do_lower_case", "add_prefix_space")  # transformers' default counts more than tokenizer.json; not here


def read(fact: str, folder: Path) -> tuple[Any, dict[str, str]]:
    """What the export reads, in the library's words, and what it reports."""
    checkpoint = Checkpoint(folder)
    sizes = architecture_of(checkpoint.config)
    if fact == "activation_fn":
        return {"sigmoid": "Sigmoid", "none": "Identity"}[relevance_scores(checkpoint)], checkpoint.assumed
    if fact in COLBERT:
        return embedding_model(checkpoint, sizes).colbert[fact], checkpoint.assumed
    files = read_tokenizer(
        folder, checkpoint.files, family_of(checkpoint.config), size=sizes.vocabulary, positions=sizes.positions
    )
    text = "the" if fact == "add_prefix_space" else "The Cat"
    found: dict[str, Any] = {
        "max_seq_length": files.max_tokens,
        "mask_token": files.tokenizer.id_to_token(files.special_tokens["mask"]),
        "additional_special_tokens": [*own_special_tokens(files.tokenizer, files.special_tokens).values()],
    }
    return found.get(fact, files.tokenizer.encode(text, add_special_tokens=False).tokens), files.assumed


def differ(fact: str, places: Sequence[str], values: Sequence[Any]) -> bool:
    """Whether files that the library reads state several values."""
    stated = dict(zip(places, values, strict=True))
    if stated.get("tokenizer_config.json model_max_length") is None and "tokenizer_config.json max_len" in stated:
        stated["tokenizer_config.json model_max_length"] = stated["tokenizer_config.json max_len"]  # the old name
    ignored = []
    if stated.get(MODULES, True) is None:
        ignored.append("config_sentence_transformers.json")
    if stated.get("tokenizer_config.json added_tokens_decoder"):
        ignored.append("special_tokens_map.json")
    if fact == "do_lower_case" and stated["sentence_bert_config.json do_lower_case"] is not True:
        ignored.append("sentence_bert_config.json")
    found = [stated.get(f"{file} {key}") for file, key in FACTS[fact] if file not in ignored]
    if fact in OF_A_CLASS:
        found.append(next(value for place, value in stated.items() if place.startswith("tokenizer.json")))
    return len({value for value in found if value not in (None, 10**30)}) > 1


@pytest.mark.parametrize(("fact", "row"), ROWS)
def test_a_fact_is_the_librarys_and_a_difference_is_reported(fact: str, row: list[Any], tmp_path: Path) -> None:
    *values, expected = row
    found, assumed = read(fact, build(STATED[fact], values, tmp_path / "checkpoint"))
    if fact in OF_A_CLASS and values[-2] is None and found != expected:
        assert "transformers assumes" in assumed[fact]
    else:
        assert found == expected
        assert fact not in FACTS or (fact in assumed) == differ(fact, STATED[fact]["places"], values), assumed


def test_each_fact_is_compared_with_its_library() -> None:
    """Of the special tokens one, of BERT's flags one, and none that has one place."""
    others = {fact for fact, places in FACTS.items() if len(places) > 1} - STATED.keys()
    assert others == {
        *(f"{name}_token" for name in ("cls", "sep", "pad", "unk", "bos", "eos")),
        *("strip_accents", "tokenize_chinese_chars"),
    }
