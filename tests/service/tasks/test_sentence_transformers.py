"""/embed gives the vectors of sentence-transformers' encode for each golden checkpoint: short and over-long texts."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.errors import Invalid, NoSuchHead
from packbert.service.settings import Settings
from packbert.service.tasks.embed import embed
from packbert.service.tasks.flow import answer_request
from packbert.service.tasks.inputs import EmbedRequest
from tests import sentence_transformers
from tests.export.goldens import Artifact
from tests.service.in_process import open_tasks

SMALLEST_COSINE = {"fp32": 0.99999, "int8": 0.99}  # of 32 channels with random weights
Ask = Callable[..., Any]
Exported = Callable[..., Artifact]


@contextmanager
def served(folder: Path, **settings: str) -> Iterator[Ask]:
    """A function that sends /embed a body and returns the vectors [inputs, dimensions]."""
    chosen = Settings.from_environment({"BERT_MODEL": str(folder), "BERT_TRUNCATE": "true"} | settings)
    with open_tasks(open_artifact(folder), chosen) as tasks:
        yield lambda **body: asyncio.run(answer_request(tasks, embed, EmbedRequest(**body))).value


def cosines(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    assert got.shape == want.shape
    return np.asarray((got * want).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", sentence_transformers.NAMES)
def test_embed_without_fields_gives_the_vectors_of_encode(name: str, precision: str, exported: Exported) -> None:
    answers, artifact = sentence_transformers.answers(name), exported(f"sentence-transformers/{name}", precision)
    manifest = artifact.manifest
    assert manifest.embedding.similarity == answers["similarity"]
    recorded = manifest.verification[f"{manifest.embedding.pooling}_smallest_cosine"]
    assert SMALLEST_COSINE[precision] <= recorded <= 1.000001
    with served(artifact.root) as ask:
        for call in answers["calls"]:
            got, want = ask(inputs=answers["texts"], **call["arguments"]), np.array(call["vectors"])
            assert cosines(got, want).min() >= SMALLEST_COSINE[precision], call["arguments"]
            if precision == "fp32":  # also the length: Normalize or none
                np.testing.assert_allclose(np.linalg.norm(got, axis=1), np.linalg.norm(want, axis=1), rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["all-modes", "deep"])
def test_the_graph_for_cuda_computes_the_modules(name: str, precision: str, tmp_path: Path) -> None:
    """Its attention replaced by plain operators, on a CPU."""
    folder = sentence_transformers.checkpoint(name, tmp_path / "checkpoint")
    manifest = export(folder, tmp_path / "artifact", precision=precision, device="cuda")
    assert manifest.verification["sentence_max_abs_error"] < (1e-4 if precision == "fp32" else 0.1)


def test_a_requests_field_wins_over_the_setting_and_the_setting_over_the_artifact(exported: Exported) -> None:
    folder = exported("sentence-transformers/dense").root
    with served(folder) as ask:
        own, raw, cls = (
            ask(inputs="the cat", **body) for body in ({}, {"normalize": False}, {"pooling": "cls", "normalize": False})
        )
        assert (own.shape, cls.shape) == ((1, 16), (1, 32))
        assert np.linalg.norm(own) == pytest.approx(1, abs=1e-6)
        assert np.linalg.norm(raw) != pytest.approx(1, abs=1e-3)
        np.testing.assert_allclose(raw / np.linalg.norm(raw), own, atol=1e-6)
        short = ask(inputs="the cat", dimensions=8)
        np.testing.assert_allclose(short, raw[:, :8] / np.linalg.norm(raw[:, :8]), atol=1e-6)
        with pytest.raises(Invalid, match="dimensions is 17; this model has 16"):
            ask(inputs="the cat", dimensions=17)
    with served(folder, BERT_POOLING="cls", BERT_NORMALIZE="false") as ask:
        assert np.array_equal(ask(inputs="the cat"), cls)
        assert np.array_equal(ask(inputs="the cat", pooling="sentence"), raw)
        assert np.array_equal(ask(inputs="the cat", pooling="sentence", normalize=True), own)


def test_a_left_out_prompt_that_truncation_cuts_off_leaves_no_token_out_twice(exported: Exported) -> None:
    text = "cat " * 50
    with served(exported("sentence-transformers/short-without-prompt").root) as ask:
        kept = ask(inputs=text, prompt="dog dog ", truncation_direction="left")
        np.testing.assert_allclose(kept, ask(inputs=text, prompt="dog ", truncation_direction="left"), atol=1e-6)


def test_a_plain_checkpoint_has_no_prompts_and_no_pooling_of_its_own(bert_artifact: Path) -> None:
    with served(bert_artifact) as ask:
        assert np.array_equal(ask(inputs="the cat"), ask(inputs="the cat", pooling="cls", normalize=False))
        with pytest.raises(NoSuchHead, match="no pooling sentence: the vectors of its checkpoint are pooling cls"):
            ask(inputs="the cat", pooling="sentence")
        with pytest.raises(Invalid, match="this model has no prompt 'query'; it has none"):
            ask(inputs="the cat", prompt_name="query")
        assert np.array_equal(ask(inputs="the cat", prompt="big "), ask(inputs="big the cat"))


@pytest.mark.parametrize("name", ["mean", "cls"])
def test_vectors_that_have_an_output_of_their_own_add_nothing_to_the_graph(name: str, exported: Exported) -> None:
    ours, plain = exported(f"sentence-transformers/{name}").manifest, exported("bert").manifest
    assert ours.outputs == plain.outputs
    assert ours.inputs == plain.inputs
    assert not ours.embedding.modes
