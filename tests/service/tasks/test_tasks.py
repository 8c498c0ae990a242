"""Limits of candidates, padding in candidates, and the deadline that is passed to the queue."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service.artifact import open_artifact
from packbert.service.errors import Unavailable
from packbert.service.settings import Settings
from packbert.service.tasks.base import Limits, Tasks
from packbert.service.tasks.deadline import DEADLINE, Deadline
from packbert.service.tasks.defaults import embedding_defaults
from packbert.service.tasks.embed import embed
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.tokenization.tokenizer import Tokenizer
from tests.service.fakes import WholeQueue


def fill(server: httpx.Client, **body: Any) -> Any:
    return server.post("/fill-mask", json=body).json()


def test_top_k_limits_the_targets_and_keeps_the_best(server: httpx.Client) -> None:
    every = fill(server, inputs="the [MASK] is big", targets=["cat", "dog", "the"])
    assert [one["score"] for one in every] == sorted((one["score"] for one in every), reverse=True)
    assert fill(server, inputs="the [MASK] is big", targets=["cat", "dog", "the"], top_k=2) == every[:2]


def test_an_answer_of_few_targets_is_small_whatever_top_k(server: httpx.Client) -> None:
    body = {"inputs": ["[MASK] " * 130] * 3, "top_k": 170}
    assert server.post("/fill-mask", json=body).status_code == 413
    assert server.post("/fill-mask", json=body | {"targets": ["cat"]}).status_code == 200


def test_more_targets_than_the_limit_of_candidates_are_an_error(server: httpx.Client) -> None:
    assert len(fill(server, inputs="the [MASK]", targets=["cat"] * 1000)) == 1
    assert fill(server, inputs="the [MASK]", targets=["cat"] * 1001)["code"] == "targets"


def test_every_candidate_names_the_target_that_it_stands_for(server: httpx.Client) -> None:
    found = fill(server, inputs="the [MASK] is [MASK]", targets=["Cat", "dog", "cat"])
    assert [{one["target"]: one["token_str"] for one in mask} for mask in found] == [{"Cat": "cat", "dog": "dog"}] * 2
    assert all("target" not in one for one in fill(server, inputs="the [MASK] is big"))


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("龍", "the target '龍' is not in the vocabulary ([UNK]): leave it out"),
        ("北龍", "the target '北龍' is not in the vocabulary (北, [UNK])"),
        (" ", "the target ' ' has no pieces"),
        ("龍" * 30, f"... is not in the vocabulary ({', '.join(['[UNK]'] * 10)}, ...)"),
    ],
)
def test_a_target_with_an_unknown_piece_is_refused_unless_its_first_piece_is_asked_for(
    server: httpx.Client, target: str, fault: str
) -> None:
    for parameters in ({"targets": ["dog", target]}, {"targets": ["dog", target], "first_piece": False}):
        refused = fill(server, inputs="the [MASK] is big", parameters=parameters)
        assert refused["code"] == "targets"
        assert fault.removeprefix("...") in refused["error"]
        assert '"first_piece": true' in refused["error"]
    found = fill(server, inputs="the [MASK] is big", targets=["dog", target], first_piece=True)
    assert {one["target"] for one in found} == {"dog", target}.difference([" "])


def test_two_targets_with_one_first_piece_are_one_candidate_with_the_name_of_the_first(server: httpx.Client) -> None:
    (one,) = fill(server, inputs="the [MASK] is big", targets=["unaffable", "un"], first_piece=True)
    assert (one["token_str"], one["target"]) == ("un", "unaffable")


def test_first_piece_given_twice_is_an_error(server: httpx.Client) -> None:
    body = {"inputs": "[MASK]", "parameters": {"targets": ["cat"], "first_piece": False}, "first_piece": True}
    assert fill(server, **body)["code"] == "parameters"


def test_padding_as_a_candidate_is_left_out_of_the_sequence(server: httpx.Client) -> None:
    vocabulary = server.get("/info").json()["sizes"]["vocabulary"]
    first, _ = fill(server, inputs="the [MASK] is [MASK]", top_k=vocabulary)
    (padding,) = (one for one in first if one["token_str"] == "[PAD]")
    assert padding["sequence"] == "[CLS] the is [MASK] [SEP]"


def test_the_timeout_for_the_queue_is_reduced_by_the_time_of_tokenizing(bert_artifact: Path) -> None:
    left: list[float] = []

    class ClosedQueue(WholeQueue):
        def answer(self, work: Sequence[Tokens], timeout_seconds: float) -> list[Row]:  # noqa: ARG002
            left.append(timeout_seconds)
            raise Unavailable("closed")

    artifact = open_artifact(bert_artifact)
    tokenizer = Tokenizer(artifact, 100_000)
    tokenizer.open()
    tasks = Tasks(
        manifest=artifact.manifest,
        tokenizer=tokenizer,
        queue=ClosedQueue(),
        limits=Limits(max_inputs=9, truncate=True),
        embedding=embedding_defaults(artifact.manifest, Settings(artifact=bert_artifact)),
    )

    async def ask() -> None:
        DEADLINE.set(Deadline(60.0))
        await embed(tasks, EmbedRequest(inputs="cat " * 200))

    with pytest.raises(Unavailable):
        asyncio.run(ask())
    tokenizer.close()
    assert 0.0 < 60.0 - left[0] < 60.0
