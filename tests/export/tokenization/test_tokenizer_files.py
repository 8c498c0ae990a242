"""Settings beside a tokenizer's files have the effect that they have in transformers, or the export is refused."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from packbert.model_export.artifact.manifest import checkpoint_files
from packbert.model_export.artifact.special_tokens import describe_own, own_special_tokens
from packbert.model_export.checkpoint import read_json
from packbert.model_export.errors import ExportError
from packbert.model_export.facts import CONFIG, ENCODER_CONFIG
from packbert.model_export.families import FAMILIES
from packbert.model_export.tokenizer import TokenizerFiles, read_tokenizer
from tests.export.goldens import edit
from tests.paths import GOLDEN

CONFIGURED = "tokenizer_config.json"
HERBERT = r"has a HerbertTokenizer, which cannot .* vocab\.txt"  # it has other files than a BertTokenizer
INVALID = {"max_len": "512", "do_lower_case": "false", "cls_token": 3}
TEXT = "The CAT, café 北京"
ADDED = {"content": "<ent>", "special": False}
SETTINGS = {  # of tokenizer_config.json -> the checkpoint of original files in which it counts
    "do_lower_case": "bert",
    "strip_accents": "bert",
    "tokenize_chinese_chars": "bert",
    "add_prefix_space": "roberta",
}
ADDING: dict[str, Callable[[int], dict[str, object]]] = {  # file -> what it states about [E9], whose id is the next
    "added_tokens.json": lambda number: {"[E9]": number},
    "tokenizer_config.json": lambda number: {"added_tokens_decoder": {str(number): {"content": "[E9]"}}},
    "tokenizer_config.json of today": lambda _: {"extra_special_tokens": ["[E9]"]},
    "special_tokens_map.json": lambda _: {"additional_special_tokens": [{"content": "[E9]", "lstrip": False}]},
}
Refused = tuple[tuple[str, ...], str, Sequence[Mapping[str, object]], str]
REFUSED: list[Refused] = [  # checkpoints, file, its settings, sentence
    (
        ("bert", "bert-labels", "roberta"),
        CONFIGURED,
        [{"added_tokens_decoder": {"500": ADDED}}],
        r"adds the token <ent> with the id 500, but the next id is \d+: it needs a tokenizer\.json with this token",
    ),
    (("bert", "bert-labels", "roberta"), "added_tokens.json", [{"<ent>": 500}], "adds the token <ent> with the id 500"),
    *((("bert",), file, [{"tokenizer_class": "HerbertTokenizer"}], HERBERT) for file in (CONFIGURED, "config.json")),
    (  # the class that transformers takes for a RoFormer whose files name none; a tokenizer.json cannot hold it
        ("roformer", "roformer-labels"),
        CONFIGURED,
        [{"tokenizer_class": one} for one in (None, "RoFormerTokenizer", "RoFormerTokenizerFast")],
        "has a RoFormerTokenizer, which finds Chinese words by jieba, not served here: choose a model of characters",
    ),
    (
        ("bert", "bert-labels"),
        CONFIGURED,
        [{"tokenizer_class": "BertJapaneseTokenizer"}],
        "has a BertJapaneseTokenizer, which .*, not served here: .*set tokenizer_class to PreTrainedTokenizerFast",
    ),
    (
        ("bert", "bert-labels"),
        CONFIGURED,
        [{"tokenizer_class": "BertweetTokenizer", "normalization": True}],
        "has a BertweetTokenizer, which .*, not served here: .*set normalization to false",
    ),
    (("bert",), CONFIGURED, [{"model_max_length": "512"}, {"model_max_length": 1}], "model_max_length"),
    *((("bert",), CONFIGURED, [{key: value}], key) for key, value in INVALID.items()),
    (
        ("bert",),
        "sentence_bert_config.json",
        [{"max_seq_length": 2}, {"max_seq_length": "9"}],
        r"max_seq_length or model_max_length is (2|'9'); it must be a number from 3 on",
    ),
]


def read(folder: Path, name: str, **settings: object) -> TokenizerFiles:
    """The tokenizer of a golden checkpoint with other settings."""
    shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
    edit(folder / "tokenizer_config.json", **settings)
    return read_as_it_is(folder)


def read_as_it_is(folder: Path, *, size: int = 10**6) -> TokenizerFiles:
    config: Mapping[str, Any] = read_json(folder / "config.json")
    encoder = folder / "sentence_bert_config.json"
    files = {CONFIG: config} | ({ENCODER_CONFIG: read_json(encoder)} if encoder.exists() else {})
    return read_tokenizer(folder, files, FAMILIES[config["model_type"]], size=size, positions=144)


@pytest.mark.parametrize("setting", SETTINGS)
def test_tokenizer_config_overrides_tokenizer_json(setting: str, tmp_path: Path) -> None:
    name, settings = SETTINGS[setting], {setting: setting == "add_prefix_space"}
    usual = read(tmp_path / "usual", f"{name}-labels").tokenizer.encode(TEXT).tokens
    followed = read(tmp_path / "followed", f"{name}-labels", **settings).tokenizer.encode(TEXT).tokens
    assert followed == read(tmp_path / "original", name, **settings).tokenizer.encode(TEXT).tokens
    assert followed != usual


def test_a_normalizer_of_tokenizer_json_without_a_setting_is_kept_and_reported(tmp_path: Path) -> None:
    tokenizer = read(tmp_path / "checkpoint", "bert-labels").tokenizer
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False, strip_accents=True)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    silent = read_tokenizer(tmp_path, {}, FAMILIES["bert"], size=10**6, positions=144)
    assert "The" not in silent.tokenizer.encode("the").tokens
    assert silent.assumed.pop("strip_accents").startswith("true, as in tokenizer.json; transformers assumes false")
    assert set(silent.assumed) == {"do_lower_case", "tokenize_chinese_chars"}
    assert all(reason.startswith("false, as in tokenizer.json") for reason in silent.assumed.values())


@pytest.mark.parametrize("name", ["spiece.model", "sentencepiece.bpe.model"])
def test_a_sentencepiece_model_without_a_tokenizer_json_is_refused_with_a_solution(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "albert", tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "tokenizer.json").rename(tmp_path / "checkpoint" / name)
    with pytest.raises(ExportError, match=f"has {name} and no tokenizer.json, which transformers 4 writes"):
        read_tokenizer(tmp_path / "checkpoint", {}, FAMILIES["albert"], size=10**6, positions=144)


@pytest.mark.parametrize("name", ["bert", "bert-labels", "roberta", "roberta-labels"])
@pytest.mark.parametrize("file", ADDING)
def test_a_token_that_a_file_adds_takes_the_next_id(name: str, file: str, tmp_path: Path) -> None:
    usual = read(tmp_path, name).tokenizer
    following = usual.get_vocab_size()
    stated = ADDING[file](following)
    path = tmp_path / file.removesuffix(" of today")
    edit(path, **stated)
    assert path in checkpoint_files(tmp_path)  # what is downloaded of the hub
    tokenizer = read_as_it_is(tmp_path, size=following + 1).tokenizer
    assert tokenizer.encode("a [E9] b").ids.count(following) == 1
    assert tokenizer.get_added_tokens_decoder()[following].special == ("special" in str(stated))
    without = read_as_it_is(tmp_path, size=following)
    assert without.assumed["added tokens"] == "without 1 that have no word embedding, such as [E9]"
    assert without.tokenizer.encode("a [E9] b").ids == usual.encode("a [E9] b").ids


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_vocabulary_is_read_with_the_special_tokens_that_the_files_name(file: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "bert", tmp_path, dirs_exist_ok=True)
    vocabulary = (tmp_path / "vocab.txt").read_text("utf-8").replace("[CLS]", "<s>").replace("[UNK]", "<unk>")
    (tmp_path / "vocab.txt").write_text(vocabulary, "utf-8")
    (tmp_path / file).write_text(json.dumps({"cls_token": "<s>", "sep_token": "cat", "unk_token": "<unk>"}), "utf-8")
    found = read_tokenizer(tmp_path, {}, FAMILIES["bert"], size=170, positions=144)
    assert found.tokenizer.encode("\U00012031").tokens == ["<s>", "<unk>", "cat"]
    assert (found.special_tokens["cls"], found.special_tokens["sep"]) == (2, 110)


def test_an_added_token_without_a_word_embedding_is_refused_with_a_solution(tmp_path: Path) -> None:
    tokenizer = read(tmp_path / "checkpoint", "bert-labels").tokenizer
    tokenizer.add_tokens(["[E9]"])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    message = r"id 170 \(\[E9\]\), but .* 170 word embeddings: remove it from the added tokens of tokenizer\.json"
    with pytest.raises(ExportError, match=message):
        read_tokenizer(tmp_path, {}, FAMILIES["bert"], size=170, positions=144)


def test_empty_lines_and_special_tokens_that_are_named_again_add_no_token(tmp_path: Path) -> None:
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    again = {str(number): {"content": name, "special": True} for number, name in enumerate(names)}
    read(tmp_path, "bert", added_tokens_decoder=again)
    with (tmp_path / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("\n\n")
    found = read_as_it_is(tmp_path, size=170).special_tokens
    assert (found["cls"], found["mask"]) == (2, 4)


@pytest.mark.parametrize("stated", ["BertweetTokenizer", "PhobertTokenizer"])
def test_a_tokenizer_json_that_transformers_does_not_read_is_reported(stated: str, tmp_path: Path) -> None:
    assumed = read(tmp_path, "roberta-labels", tokenizer_class=stated).assumed
    assert assumed == {"tokenizer_class": f"that of tokenizer.json; transformers builds a {stated} from other files"}


@pytest.mark.parametrize("name", ["bert", "bert-labels", "roberta"])
@pytest.mark.parametrize(
    "settings",
    [{"model_input_names": ["input_ids", "attention_mask"]}, {"tokenizer_class": "DistilBertTokenizer"}],
    ids=lambda settings: next(iter(settings)),
)
def test_both_texts_of_a_pair_have_type_0_without_transformers_types(
    settings: dict[str, object], name: str, tmp_path: Path
) -> None:
    usual, cleared = read(tmp_path / "usual", name).tokenizer, read(tmp_path / "cleared", name, **settings).tokenizer
    assert cleared.encode("the cat", "café").ids == usual.encode("the cat", "café").ids
    assert any(usual.encode("the cat", "café").type_ids) == name.startswith("bert")
    assert not any(cleared.encode("the cat", "café").type_ids)
    assert cleared.encode("the cat").ids == usual.encode("the cat").ids
    stated = settings | {"model_input_names": ["input_ids", "token_type_ids"]}  # they count more than the class
    assert any(read(tmp_path / "stated", "bert", **stated).tokenizer.encode("a", "b").type_ids)


def test_a_truncation_side_that_is_not_the_default_is_reported(tmp_path: Path) -> None:
    assert "truncation_side" not in read(tmp_path / "right", "bert", truncation_side="right").assumed
    assert read(tmp_path / "left", "bert", truncation_side="left").assumed["truncation_side"].startswith("right, ")


@pytest.mark.parametrize(
    ("name", "file", "settings", "message"),
    [(name, file, one, message) for names, file, every, message in REFUSED for name in names for one in every],
)
def test_settings_that_are_not_followed_are_refused_with_a_solution(
    name: str, file: str, settings: dict[str, object], message: str, tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / name, tmp_path, dirs_exist_ok=True)
    edit(tmp_path / file, **settings)
    with pytest.raises(ExportError, match=message):
        read_as_it_is(tmp_path)


@pytest.mark.parametrize("name", ["bert", "bert-labels"])
@pytest.mark.parametrize(
    ("file", "settings"),
    [
        (CONFIGURED, {"additional_special_tokens": ["cat"]}),
        (CONFIGURED, {"extra_special_tokens": ["cat"]}),
        (CONFIGURED, {"added_tokens_decoder": {"7": {"content": "cat", "special": True}}}),
        ("special_tokens_map.json", {"additional_special_tokens": ["cat"]}),
    ],
)
def test_a_piece_that_settings_make_special_is_read_in_a_text(
    name: str, file: str, settings: dict[str, object], tmp_path: Path
) -> None:
    usual = read(tmp_path / "usual", name)
    shutil.copytree(GOLDEN / name, tmp_path / "made")
    edit(tmp_path / "made" / file, **settings)
    made = read_as_it_is(tmp_path / "made")
    assert own_special_tokens(usual.tokenizer, usual.special_tokens) == {}
    cat = made.tokenizer.token_to_id("cat")
    assert own_special_tokens(made.tokenizer, made.special_tokens) == {cat: "cat"}
    assert "cat" in made.tokenizer.encode("thecatx").tokens
    assert "cat are read in a text" in describe_own(made.tokenizer, made.special_tokens)


def test_bos_and_eos_tokens_are_none_of_the_checkpoints_own(tmp_path: Path) -> None:
    found = read(tmp_path, "bert-entities", bos_token="[E1]", eos_token="[SEP]")
    own = own_special_tokens(found.tokenizer, found.special_tokens)
    assert list(own.values()) == ["[/E1]", "<ent>"]
    assert "eos" not in found.special_tokens
