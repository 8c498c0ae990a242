"""/embed: the vectors and the defaults of each golden checkpoint, and what settings and requests change."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.engine.info import engine_info
from packbert.service.errors import Invalid
from packbert.service.settings import Settings, SettingsError
from packbert.service.tasks.defaults import describe_defaults, embedding_defaults, root_task
from packbert.service.tasks.embed import embed, similarity
from packbert.service.tasks.flow import Read, Tasks, answer_request
from packbert.service.tasks.inputs import EmbedRequest, NspRequest, RerankFields, SimilarityRequest
from packbert.service.tasks.pairs import nsp, rerank, score_pairs
from tests.checkpoints import checkpoint, names_in
from tests.export.goldens import Exported, answers, changed
from tests.service.in_process import open_tasks

KIND = "sentence-transformers"
NAMES = names_in(KIND)
SMALLEST_COSINE = {"fp32": 0.99999, "int8": 0.99}  # of 32 channels with random weights
Ask = Callable[..., Any]


@contextmanager
def opened(artifact: Path, **settings: str) -> Iterator[Tasks]:
    chosen = Settings.from_environment({"BERT_MODEL": str(artifact), "BERT_TRUNCATE": "true"} | settings)
    with open_tasks(open_artifact(artifact), chosen) as tasks:
        yield tasks


def answer(tasks: Tasks, read: Read, request: object) -> Any:
    return asyncio.run(answer_request(tasks, read, request)).value


@contextmanager
def asking(artifact: Path, **settings: str) -> Iterator[Ask]:
    """A function that sends /embed a body and returns the vectors [inputs, dimensions]."""
    with opened(artifact, **settings) as tasks:
        yield lambda **body: answer(tasks, embed, EmbedRequest.model_validate(body))


def cosines(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    assert got.shape == want.shape
    return np.asarray((got * want).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1))


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp32") for name in NAMES), *((f"{KIND}/{name}", "int8") for name in ("all-modes", "deep"))],
)
def test_embed_without_fields_gives_the_vectors_of_encode(name: str, precision: str, exported: Exported) -> None:
    golden, artifact = answers(name), exported(name, precision)
    manifest = artifact.manifest
    assert manifest.embedding.similarity == golden["similarity"]
    recorded = manifest.verification[f"{manifest.embedding.pooling}_smallest_cosine"]
    assert SMALLEST_COSINE[precision] <= recorded <= 1.000001
    with asking(artifact.root) as ask_for:
        for call in golden["calls"]:
            got, want = ask_for(inputs=golden["texts"], **call["arguments"]), np.array(call["vectors"])
            assert cosines(got, want).min() >= SMALLEST_COSINE[precision], call["arguments"]
            if precision == "fp32":  # also the length: Normalize or none
                np.testing.assert_allclose(np.linalg.norm(got, axis=1), np.linalg.norm(want, axis=1), rtol=1e-4)


@pytest.mark.parametrize(("name", "precision"), [("all-modes", "fp32"), ("deep", "fp16")])
def test_the_graph_for_cuda_computes_the_modules(name: str, precision: str, tmp_path: Path) -> None:
    """Its attention replaced by plain operators, on a CPU."""
    folder = checkpoint(f"{KIND}/{name}", tmp_path / "checkpoint")
    manifest = export(folder, tmp_path / "artifact", precision=precision, device="cuda")
    assert manifest.verification["sentence_max_abs_error"] < (1e-4 if precision == "fp32" else 0.1)


def test_a_requests_field_wins_over_the_setting_and_that_over_the_artifact(exported: Exported) -> None:
    folder = exported("sentence-transformers/dense").root
    with asking(folder) as ask_for:
        own, raw, cls = (
            ask_for(inputs="the cat", **body)
            for body in ({}, {"normalize": False}, {"pooling": "cls", "normalize": False})
        )
        assert (own.shape, cls.shape) == ((1, 16), (1, 32))
        assert np.linalg.norm(own) == pytest.approx(1, abs=1e-6)
        assert np.linalg.norm(raw) != pytest.approx(1, abs=1e-3)
        np.testing.assert_allclose(raw / np.linalg.norm(raw), own, atol=1e-6)
        short = ask_for(inputs="the cat", dimensions=8)
        np.testing.assert_allclose(short, raw[:, :8] / np.linalg.norm(raw[:, :8]), atol=1e-6)
        with pytest.raises(Invalid, match="dimensions is 17; this model has 16"):
            ask_for(inputs="the cat", dimensions=17)
    with asking(folder, BERT_POOLING="cls", BERT_NORMALIZE="false") as ask_for:
        assert np.array_equal(ask_for(inputs="the cat"), cls)
        assert np.array_equal(ask_for(inputs="the cat", pooling="sentence"), raw)
        assert np.array_equal(ask_for(inputs="the cat", pooling="sentence", normalize=True), own)


def test_a_left_out_prompt_that_is_cut_off_leaves_nothing_out_twice(exported: Exported) -> None:
    text = "cat " * 50
    with asking(exported("sentence-transformers/short-without-prompt").root) as ask_for:
        kept = ask_for(inputs=text, prompt="dog dog ", truncation_direction="left")
        np.testing.assert_allclose(kept, ask_for(inputs=text, prompt="dog ", truncation_direction="left"), atol=1e-6)


def test_the_root_task_may_not_need_a_head_that_is_missing(exported: Exported) -> None:
    manifest = exported("bert").manifest

    def chosen(task: str, **more: str) -> str | None:
        return root_task(manifest, Settings.from_environment({"BERT_MODEL": ".", "BERT_ROOT_TASK": task} | more))

    assert (chosen("nsp"), chosen("rerank", BERT_RERANK="cosine")) == ("nsp", "rerank")
    with pytest.raises(SettingsError, match="BERT_ROOT_TASK: bert has no labels head, which predict needs"):
        chosen("predict")
    with pytest.raises(SettingsError, match="BERT_ROOT_TASK: bert is no cross-encoder, which rerank needs"):
        chosen("rerank")


@pytest.mark.parametrize("name", ["mean", "cls"])
def test_vectors_with_an_output_of_their_own_add_no_graph(name: str, exported: Exported) -> None:
    ours, plain = exported(f"sentence-transformers/{name}").manifest, exported("bert").manifest
    assert ours.outputs == plain.outputs
    assert ours.inputs == plain.inputs
    assert not ours.embedding.modes


KEPT = 12  # truncate_dim of the golden checkpoint "truncated"


@pytest.mark.parametrize("name", ["truncated", "euclidean", "manhattan"])
def test_similarities_are_those_of_the_checkpoints_function(name: str, exported: Exported) -> None:
    golden = answers(f"{KIND}/{name}")
    first, *others = golden["texts"]
    with opened(exported(f"{KIND}/{name}").root, BERT_RERANK="cosine") as tasks:
        asked = SimilarityRequest.model_validate({"inputs": {"source_sentence": first, "sentences": others}})
        found, fields = answer(tasks, similarity, asked), RerankFields(query=first)
        ranked = answer(tasks, partial(rerank, texts=others), fields)
        scored = answer(tasks, lambda tasks, fields: score_pairs(tasks, [first], others, fields, raw=False), fields)
    np.testing.assert_allclose(found, golden["similarities"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(ranked, found)
    np.testing.assert_allclose(scored, found, rtol=1e-6)


def test_a_request_can_ask_for_another_length_of_truncated_vectors(exported: Exported) -> None:
    with asking(exported(f"{KIND}/truncated").root) as ask_for:
        own, scaled, whole, cls = (
            ask_for(inputs="The cat sat on the mat.", **fields)
            for fields in ({}, {"normalize": True}, {"dimensions": 32}, {"pooling": "cls"})
        )
        np.testing.assert_allclose(own, whole[:, :KEPT], atol=1e-6)
        np.testing.assert_allclose(scaled, own / np.linalg.norm(own), atol=1e-6)
        assert cls.shape == (1, 32)


@pytest.mark.parametrize("is_logit", [False, True])
def test_the_score_of_a_cross_encoder_is_made_by_its_stored_activation(is_logit: bool, tmp_path: Path) -> None:
    stated = {"activation_fn": "torch.nn.modules.linear.Identity"} if is_logit else {}
    source = changed("distilbert-labels", tmp_path / "checkpoint", sentence_transformers=stated)
    export(source, tmp_path / "artifact")
    with opened(tmp_path / "artifact") as tasks:
        texts = ["the river is cold", "a dog"]
        found, raw = (
            answer(tasks, partial(rerank, texts=texts), RerankFields(query="tea", raw_scores=one))
            for one in (False, True)
        )
    np.testing.assert_allclose(found, raw if is_logit else 1 / (1 + np.exp(-raw)), atol=1e-6)


def test_an_activation_that_is_not_computed_is_reported(tmp_path: Path) -> None:
    stated = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    source = changed("distilbert-labels", tmp_path / "checkpoint", sentence_transformers=stated)
    manifest = export(source, tmp_path / "artifact")
    assert "Tanh, which is not computed" in manifest.assumed["activation_fn"]


def test_a_model_with_one_segment_takes_single_texts_and_refuses_pairs(tmp_path: Path) -> None:
    folder = changed("bert", tmp_path / "checkpoint", type_vocab_size=1)
    name, weights = "bert.embeddings.token_type_embeddings.weight", load_file(folder / "model.safetensors")
    save_file(weights | {name: weights[name][:1]}, folder / "model.safetensors")
    export(folder, tmp_path / "artifact")
    with opened(tmp_path / "artifact") as tasks:
        assert "no pairs" in tasks.manifest.assumed["single texts"]
        one = EmbedRequest(inputs="The cat sat on the mat.")
        assert answer(tasks, embed, one).shape == (1, 32)
        with pytest.raises(Invalid, match="it takes single texts"):
            answer(tasks, nsp, NspRequest.model_validate({"inputs": [["a", "b"]]}))


@pytest.fixture
def prompts(exported: Exported) -> Path:
    """An artifact with pooling mean and Normalize."""
    return exported("sentence-transformers/prompts").root


def test_info_says_what_a_checkpoints_own_vectors_are(prompts: Path) -> None:
    """The vectors themselves are in the recorded answers."""
    info = engine_info(open_artifact(prompts), Settings(model=str(prompts)), "CPU")
    assert (info["pooling"], info["normalize"], info["similarity_fn_name"]) == ("mean", True, "cosine")
    assert (info["default_prompt_name"], info["prompts"]["document"]) == ("query", "")
    assert info["embedding"] == {
        "decided_by": "the artifact",
        "dimensions": 32,
        "modules": ("Pooling(mean)", "Normalize"),
        "left_out": (),
        "include_prompt": True,
    }


def test_a_pooling_that_the_artifact_lacks_stops_the_start(prompts: Path) -> None:
    manifest = open_artifact(prompts).manifest
    settings = Settings.from_environment({"BERT_MODEL": "/a", "BERT_POOLING": "sentence"})
    with pytest.raises(SettingsError, match="BERT_POOLING: prompts has no sentence; it has cls, mean, pooler"):
        embedding_defaults(manifest, settings)


def test_the_line_of_the_start_names_the_defaults_and_what_decided(prompts: Path) -> None:
    manifest = open_artifact(prompts).manifest
    for stated, line in {
        None: "pooling mean (Pooling(mean), Normalize), unit length, prompt query; decided by the artifact",
        "false": "pooling mean (Pooling(mean), Normalize), not normalized, prompt query; decided by BERT_NORMALIZE",
    }.items():
        variables = {"BERT_MODEL": "/a"} | ({"BERT_NORMALIZE": stated} if stated else {})
        assert describe_defaults(manifest, Settings.from_environment(variables)) == f"/embed by default: {line}"
