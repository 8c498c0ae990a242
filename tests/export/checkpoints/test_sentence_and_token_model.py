"""What the files of sentence-transformers, ColBERT and BGE-M3 say of a vector is read as they read it, or refused."""

from pathlib import Path
from typing import Any

import pytest

from packbert.model_export.__main__ import main
from packbert.model_export.artifact.manifest import Side, checkpoint_files
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.describe import describe_checkpoint
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.model_export.facts import ENCODER_CONFIG
from packbert.model_export.sentence import SentenceModel, sentence_model
from tests.checkpoints import checkpoint
from tests.export.goldens import Exported, edit, sentence_transformers_checkpoint, write_json
from tests.paths import GOLDEN

WIDTH = 32
SETTINGS = {
    "stanford": "artifact.metadata",
    "pylate": "config_sentence_transformers.json",
    "dense": "2_Dense/config.json",
}
MEAN = {
    "word_embedding_dimension": WIDTH,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
}
REFUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {  # modules, changed configs, sentence
    "unknown module": (
        ("Transformer", "Pooling", "LSTM"),
        {},
        r"module 2 of .*, sentence_transformers\.models\.LSTM, is not computed: the vectors would not be",
    ),
    "before pooling": (("Transformer", "WeightedLayerPooling", "Pooling"), {}, "WeightedLayerPooling, is not computed"),
    "other first": (("BoW", "Normalize"), {}, "BoW, is not computed at this place"),
    "unknown mode": (
        ("Transformer", "Pooling"),
        {"1_Pooling/config.json": {"pooling_mode": "median"}},
        "pools by median, and only cls, lasttoken, max, mean, mean_sqrt_len_tokens, weightedmean are computed",
    ),
    "activation": (
        ("Transformer", "Pooling", "Dense"),
        {"2_Dense/config.json": {"out_features": 8, "activation_function": "torch.nn.modules.activation.Softplus"}},
        r"has the activation torch\.nn\.modules\.activation\.Softplus, and only Identity, Tanh",
    ),
    "tokens": (
        ("Transformer", "Pooling", "Dense"),
        {"2_Dense/config.json": {"module_input_name": "token_embeddings"}},
        "has module_input_name 'token_embeddings', and only 'sentence_embedding' is computed",
    ),
    "task": (
        ("Transformer", "Pooling"),
        {"sentence_bert_config.json": {"transformer_task": "fill-mask"}},
        "has transformer_task 'fill-mask', and only 'feature-extraction' is computed",
    ),
}
DAMAGED: dict[str, tuple[str, Any, str]] = {  # file, content, sentence
    "not json": ("modules.json", "[", r"modules\.json cannot be read"),
    "a number": ("modules.json", "7", r"modules\.json cannot be read"),
    "no type": ("modules.json", '[{"path": "1_Pooling"}]', r"modules\.json cannot be read"),
    "names": ("modules.json", '["1_Pooling"]', r"modules\.json cannot be read"),
    "another package": (
        "modules.json",
        '[{"path": "", "type": "custom_st.Transformer"}]',
        r"custom_st\.Transformer, is not computed",
    ),
    "outside": (
        "modules.json",
        '[{"path": "../x", "type": "sentence_transformers.models.Transformer"}]',
        "names '../x': a module must be in a folder beside modules.json",
    ),
    "size": ("1_Pooling/config.json", '{"embedding_dimension": 8}', "pools 8 channels; the encoder has 32"),
    "prompts": ("config_sentence_transformers.json", '{"prompts": ["a"]}', "prompts must be texts by name"),
    "default": (
        "config_sentence_transformers.json",
        '{"prompts": {"query": "q: "}, "default_prompt_name": "passage"}',
        "'passage', which is not one of its prompts: query",
    ),
    "no weights": ("2_Dense/config.json", '{"out_features": 8}', r"2_Dense has no model\.safetensors or"),
}


def read(folder: Path, **more: Any) -> SentenceModel:
    return sentence_model(Checkpoint(folder), WIDTH, **more)


@pytest.mark.parametrize(
    ("pooling", "modes", "output"),
    [
        (MEAN, ("mean",), "mean"),
        ({"pooling_mode_cls_token": True, "include_prompt": True}, ("cls",), "cls"),
        ({"pooling_mode": "mean"}, ("mean",), "mean"),
        ({"pooling_mode": ["cls"]}, ("cls",), "cls"),
        ({"pooling_mode_max_tokens": True}, ("max",), "sentence"),
        ({"pooling_mode": "lasttoken"}, ("lasttoken",), "sentence"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean"), "sentence"),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls"), "sentence"),
        ({"pooling_mode": "mean", "include_prompt": False}, ("mean",), "sentence"),
        ({}, ("mean",), "mean"),  # the library's default
    ],
)
def test_the_modes_are_those_that_the_library_reads(
    tmp_path: Path, pooling: Any, modes: tuple[str, ...], output: str
) -> None:
    one = sentence_transformers_checkpoint(tmp_path / "checkpoint", pooling)
    found = sentence_model(one, WIDTH)
    assert (found.modes, found.pooling, found.normalize) == (modes, output, True)
    assert found.dimensions == WIDTH * len(modes)
    assert not one.assumed


def test_without_modules_it_is_cls() -> None:
    found = read(GOLDEN / "bert")
    assert (found.pooling, found.normalize, found.modules, found.prompts) == ("cls", False, (), {})


def test_a_classifiers_folder_has_no_vectors_of_its_own(tmp_path: Path) -> None:
    one = sentence_transformers_checkpoint(tmp_path / "checkpoint", MEAN, ("Transformer", "LogitScore"))
    write_json(one.folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    assert read(one.folder).pooling == "cls"


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_module_that_is_not_computed_is_refused_or_left_out(tmp_path: Path, case: str) -> None:
    modules, configs, sentence = REFUSED[case]
    folder = sentence_transformers_checkpoint(tmp_path / "checkpoint", MEAN, modules).folder
    for path, content in configs.items():
        (folder / path).parent.mkdir(exist_ok=True)
        write_json(folder / path, content)
    with pytest.raises(ExportError, match=sentence):
        read(folder)
    found = read(folder, without_modules=True)
    assert found.left_out
    assert [name.rsplit(".", 1)[-1] for name in found.left_out] == list(modules[-len(found.left_out) :])


def test_without_modules_exports_and_names_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sentence_transformers_checkpoint(
        tmp_path / "checkpoint", MEAN, ("Transformer", "Pooling", "CNN", "Normalize")
    ).folder
    assert main([str(folder), str(tmp_path / "artifact")]) == 2
    assert "sentence_transformers.models.CNN, is not computed" in capsys.readouterr().err
    assert main([str(folder)], "describe") == 2
    assert "CNN, is not computed" in capsys.readouterr().out
    assert main([str(folder), str(tmp_path / "artifact"), "--without-modules"]) == 0
    said = capsys.readouterr().out
    assert "embeddings by default: Pooling(mean); 32 numbers" in said
    for module in ("CNN", "Normalize"):
        assert f"without module sentence_transformers.models.{module}: it is not computed" in said


@pytest.mark.parametrize("case", sorted(DAMAGED))
def test_damaged_files_are_refused(tmp_path: Path, case: str) -> None:
    name, content, sentence = DAMAGED[case]
    modules = ("Transformer", "Pooling", "Dense") if name.startswith("2_") else ("Transformer", "Pooling")
    folder = sentence_transformers_checkpoint(tmp_path / "checkpoint", MEAN, modules).folder
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content, "utf-8")
    with pytest.raises(ExportError, match=sentence):
        read(folder)


def test_the_manifest_says_how_the_vectors_are_made(exported: Exported) -> None:
    manifest = exported("sentence-transformers/without-prompt").manifest
    assert manifest.embedding.pooling == "sentence"
    assert manifest.embedding.modules[0].endswith("lasttoken, without the prompt)")
    assert manifest.embedding.dimensions == 6 * WIDTH
    assert manifest.embedding.prompts["query"] == "the river is cold: "
    assert (manifest.embedding.default_prompt, manifest.embedding.similarity) == ("query", "cosine")
    assert not manifest.embedding.include_prompt
    assert manifest.verification["sentence_max_abs_error"] < 1e-5


@pytest.mark.parametrize("of_classifier", [False, True])
def test_options_of_loading_that_change_an_answer_are_refused_by_name(tmp_path: Path, of_classifier: bool) -> None:
    folder = checkpoint("sentence-transformers/mean", tmp_path / "checkpoint")
    if of_classifier:
        write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    for options, named in (
        ({"tokenizer_args": {"do_lower_case": False}}, "do_lower_case to False"),
        ({"processor_kwargs": {"model_max_length": 8}}, "model_max_length to 8"),
        ({"config_args": {"local_attention": 2}}, "local_attention to 2"),
        ({"processing_kwargs": {"text": {"add_special_tokens": False}}}, "add_special_tokens to False"),
        ({"query_length": 6}, "query_length to 6"),
    ):
        write_json(folder / "sentence_bert_config.json", options)
        with pytest.raises(ExportError, match=rf"sentence_bert_config\.json sets {named}, which is not applied here"):
            read(folder)
    kept = {"attn_implementation": "sdpa", "add_pooling_layer": False}
    write_json(folder / "sentence_bert_config.json", {"model_args": kept, "tokenizer_args": None, "config_args": {}})
    assert read(folder).pooling == ("cls" if of_classifier else "mean")


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"])
def test_the_limit_is_read_under_the_names_of_all_versions(tmp_path: Path, family: str) -> None:
    folder = checkpoint("sentence-transformers/mean", tmp_path / "checkpoint")
    (folder / "sentence_bert_config.json").unlink()
    write_json(folder / f"sentence_{family}_config.json", {"max_seq_length": 17})
    assert Checkpoint(folder).files[ENCODER_CONFIG] == {"max_seq_length": 17}


def test_a_crossencoders_default_prompt_is_refused_with_a_solution(tmp_path: Path) -> None:
    folder = checkpoint("sentence-transformers/mean", tmp_path / "checkpoint")
    settings = {"model_type": "CrossEncoder", "prompts": {"ask": "ask: "}, "default_prompt_name": "ask"}
    write_json(folder / "config_sentence_transformers.json", settings)
    with pytest.raises(ExportError, match="'ask: ' is not added to pairs here: remove it there, and send the prompt"):
        read(folder)
    write_json(folder / "config_sentence_transformers.json", settings | {"prompts": {"ask": ""}})
    assert read(folder).pooling == "cls"


@pytest.mark.parametrize("root", [None, {"__version__": "1.0"}])
def test_the_old_layout_is_read_and_keeps_the_checkpoints_name(tmp_path: Path, root: object) -> None:
    folder = checkpoint("sentence-transformers/old-layout", tmp_path / "checkpoint")
    assert not (folder / "config.json").exists()
    if root is not None:  # sentence-transformers before 2.0 wrote one of its own
        write_json(folder / "config.json", root)
    one = Checkpoint(folder)
    assert (one.name, one.folder) == ("checkpoint", folder / "0_Transformer")
    assert one.files[ENCODER_CONFIG]["max_seq_length"] == 32
    assert not describe_checkpoint(folder).refused


def test_the_sides_of_a_colbert_are_in_the_manifest(tmp_path: Path) -> None:
    source = checkpoint("multi-vectors/stanford", tmp_path / "checkpoint")
    edit(source / SETTINGS["stanford"], ["doc_maxlen"], mask_punctuation=False)
    manifest = export(source, tmp_path / "artifact")
    zero, one = 23, 24  # the ids of its markers
    assert manifest.sides == {
        "query": Side(max_tokens=23, marker=(zero,), fills=True),
        "document": Side(max_tokens=143, marker=(one,)),  # 220 in ColBERT, and this model has 144 positions
    }
    assert (manifest.max_tokens, manifest.embedding.pooling, manifest.embedding.dimensions) == (144, "multi", 12)
    assert manifest.verification["multi_max_abs_error"] < 1e-5
    assert "multi" in str(describe_checkpoint(source))


def test_bge_m3s_weights_are_verified_and_its_files_are_the_checkpoints(tmp_path: Path, exported: Exported) -> None:
    source = checkpoint("multi-vectors/bge-m3", tmp_path / "checkpoint")
    assert {"colbert_linear.pt", "sparse_linear.pt"} <= {path.name for path in checkpoint_files(source)}
    manifest = exported("multi-vectors/bge-m3").manifest
    assert {"multi", "token_weights", "sparse"} <= {*manifest.heads}
    assert manifest.sparse == "token_weights"
    assert (manifest.embedding.pooling, manifest.embedding.normalize) == ("cls", True)
    assert manifest.verification["token_weights_max_abs_error"] < 1e-5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dense", {"out_features": 17}, r"'linear.bias' of .*2_Dense must have the shape \[17\]; it is \(16,\)"),
        ("dense", {"use_residual": True}, r"weight 'residual\.weight' of .*2_Dense must have the shape .*; it is miss"),
        ("stanford", {"query_maxlen": "32"}, "sets query_length to '32'; it must be a value like 32"),
        ("stanford", {"doc_maxlen": 2}, "sets document_length to 2; it must be a value like 180"),
        ("stanford", {"similarity": "l2"}, "sets similarity to 'l2'; only 'cosine' is computed"),
        ("stanford", {"doc_token_id": "[unused1]"}, r"marks texts with '\[unused1\]', and its tokenizer has no such"),
        ("pylate", {"query_prefix": None}, r"marks texts with '\[Q\] ', and its tokenizer has no such token"),
        ("pylate", {"query_length": 10}, "filled up to 10 tokens .* in family modernbert that is computed up to 9"),
    ],
)
def test_what_is_not_computed_is_refused(name: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    kind = "sentence-transformers" if name == "dense" else "multi-vectors"
    source = checkpoint(f"{kind}/{name}", tmp_path / "checkpoint")
    edit(source / SETTINGS[name], **settings)
    with pytest.raises(ExportError, match=message):
        export(source, tmp_path / "artifact")
    assert not (tmp_path / "artifact" / "cpu").exists()
