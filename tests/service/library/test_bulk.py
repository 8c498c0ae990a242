"""Any number of texts through an engine in bounded memory; and `packbert bulk`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import Table, parquet

from packbert import Engine, RequestFailed, ServiceError
from packbert.service.errors import Invalid, NoSuchHead, Overloaded, Unavailable
from packbert.service.library import engine as library
from packbert.service.library import job
from packbert.service.library.arguments import run_command
from packbert.service.library.bulk_command import main
from packbert.service.library.files import ChunkLimits, Input, estimate_tokens, split_into_chunks, write_parquet_part
from tests.paths import GOLDEN

TEXTS = [f"the dog number {number} is hairy" for number in range(700)]
LONG = "dog " * 400


@pytest.fixture(scope="module")
def engine(bert_artifact: Path) -> Iterator[Engine]:
    with Engine.from_model(bert_artifact, max_inputs=50) as engine:
        yield engine


def test_all_texts_have_their_vectors_in_order(engine: Engine) -> None:
    found = list(engine.embed_all(iter(TEXTS), normalize=True))
    pieces = [engine.wait(engine.embed(TEXTS[start : start + 50], normalize=True)) for start in range(0, 700, 50)]
    assert np.array_equal(found, np.concatenate(pieces))
    assert list(engine.embed_all([])) == []
    pairs = [("my dog", text) for text in TEXTS[:60]]
    assert list(engine.run_all("nsp", pairs)) == [engine.wait(engine.nsp([pair]))[0] for pair in pairs]


def test_texts_are_read_only_as_far_ahead_as_requests_are_under_way(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "TOKENS_AHEAD", 2000)
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for text in TEXTS:
            read += 1
            yield text

    found = engine.embed_all(texts())
    for done in range(1, len(TEXTS) + 1):
        next(found)
        assert read <= done + 300  # 2,000 estimated tokens are 222 of these texts; and the request that is next
    assert next(found, None) is None


def test_a_refused_text_is_named_by_its_place_among_all(engine: Engine) -> None:
    found = engine.embed_all([*TEXTS[:130], LONG, *TEXTS])
    assert len([next(found) for _ in range(100)]) == 100  # of the requests before that of the text
    with pytest.raises(ServiceError, match="input 130: input has") as failed:
        next(found)
    assert failed.value.index == 130
    assert engine.health().ready


def test_a_full_queue_delays_texts_and_loses_none(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [Overloaded("the queue is full", retry_after=0.001)] * 3
    answer = Engine.run_task

    async def refuse_some(self: Engine, task: str, inputs: Any, **fields: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await answer(self, task, inputs, **fields)

    monkeypatch.setattr(Engine, "run_task", refuse_some)
    assert np.array_equal(list(engine.embed_all(TEXTS)), list(engine.embed_all(TEXTS)))
    assert refusals == []


def test_an_iteration_that_ends_early_leaves_nothing_in_the_queue(engine: Engine) -> None:
    found = engine.embed_all(TEXTS)
    next(found)
    found.close()  # type: ignore[attr-defined]  # a generator
    assert len(list(engine.embed_all(TEXTS[:3]))) == 3
    assert engine.load().waiting_tokens == 0


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".parquet"])
def test_the_command_answers_files(
    bert_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, suffix: str
) -> None:
    monkeypatch.setattr(job, "PART_ROWS", 16)
    monkeypatch.setenv("BERT_MODEL", str(bert_artifact))
    source, output = tmp_path / f"in{suffix}", tmp_path / "out.parquet"
    texts = [*TEXTS[:40], 'with "quotes", commas; and\ttabs']
    if suffix == ".parquet":
        parquet.write_table(Table.from_pydict({"id": list(range(41)), "body": texts}), source)
    elif suffix == ".csv":
        quoted = [text.replace('"', '""') for text in texts]
        source.write_text("id,body\r\n" + "".join(f'1,"{text}"\r\n' for text in quoted), "utf-8")
    elif suffix == ".jsonl":
        source.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts), "utf-8")
    else:
        source.write_text("\n".join(texts) + "\n", "utf-8")
    column = [] if suffix == ".txt" else ["--column", "body"]
    assert main([str(source), str(output), *column, "--set", "pooling=mean", "--set", "normalize=true"]) == 0
    found = np.asarray(parquet.read_table(output)["output"].to_pylist(), np.float32)
    assert np.array_equal(found, engine.wait(engine.embed(texts, pooling="mean", normalize=True)))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, output.name])


def test_answers_that_are_no_vectors_are_json_texts_in_parquet(tmp_path: Path) -> None:
    write_parquet_part(tmp_path / "part", [{"word": "é"}, None])
    assert parquet.read_table(tmp_path / "part")["output"].to_pylist() == ['{"word": "é"}', None]


def test_refused_rows_are_named_or_left_empty(
    bert_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("a,b\nmy dog,is hairy\n,\nmy dog,is hairy\n", "utf-8")
    command = [str(source), str(output), "--model", str(bert_artifact), "--column", "a", "--pair-column", "b"]
    assert main([*command, "--task", "nsp"]) == 1
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert "row 2: input has no tokens" in refusal
    assert refusal.endswith("; --skip-errors leaves refused rows without an answer")
    assert main([*command, "--task", "nsp", "--skip-errors"]) == 3
    first, empty, third = (json.loads(line) for line in output.read_text("utf-8").splitlines())
    assert empty is None
    assert first == third
    assert first["label"] in first


@pytest.mark.parametrize(
    ("error", "continues"),
    [
        (ServiceError("a run failed"), True),
        (ServiceError("a run failed on this text", index=3), False),
        (Unavailable("loading"), True),
        (Overloaded("the queue is full"), True),
        (RequestFailed("no server answers"), True),
        (RequestFailed("the key is missing or wrong", status=401), False),
        (RequestFailed("there is no model 'x'", status=404), False),
        (Invalid("poolin: did you mean pooling?"), False),
        (NoSuchHead("this model has no tags head"), False),
    ],
)
def test_an_error_says_that_the_command_continues_only_if_it_does(
    error: ServiceError, continues: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer() -> int:
        raise error

    assert run_command("packbert bulk", answer) == 1
    assert capsys.readouterr().err == f"packbert bulk: {error}{'; the same command continues' * continues}\n"


def test_a_checkpoint_is_exported_and_answers(
    bert_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("my dog\nis hairy\n", "utf-8")
    monkeypatch.setenv("BERT_CACHE", str(tmp_path / "cache"))
    assert main(["--model", str(GOLDEN / "bert"), str(source), str(tmp_path / "checkpoint.npy")]) == 0
    assert main(["--model", str(bert_artifact), str(source), str(tmp_path / "artifact.npy")]) == 0
    monkeypatch.setenv("BERT_MODELS", f"first={bert_artifact}")
    assert main([str(source), str(tmp_path / "models.npy")]) == 0
    for name in ("artifact", "models"):
        assert np.array_equal(np.load(tmp_path / "checkpoint.npy"), np.load(tmp_path / f"{name}.npy"))


ITEMS = st.lists(st.text(max_size=40) | st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=60)


def length(item: Input) -> int:
    return len(item) if isinstance(item, str) else len(item[0]) + len(item[1])


@given(ITEMS, st.integers(1, 40), st.integers(1, 8), st.integers(1, 100))
def test_chunks_are_the_inputs_in_order_within_the_limits(
    items: list[Input], tokens: int, inputs: int, characters: int
) -> None:
    chunks = list(split_into_chunks(items, ChunkLimits(tokens=tokens, inputs=inputs, characters=characters)))
    assert [item for chunk in chunks for item in chunk] == items
    for chunk in chunks:
        assert 1 <= len(chunk) <= inputs
        assert len(chunk) == 1 or sum(estimate_tokens(item) for item in chunk) <= tokens
        assert len(chunk) == 1 or sum(length(item) for item in chunk) <= characters


def test_a_chinese_character_is_a_token_and_four_letters_are_one() -> None:
    assert estimate_tokens("我喜欢机器学习。") == 2 + 8
    assert estimate_tokens("abcd" * 5) == 2 + 5
    assert estimate_tokens(("abcd", "我")) == 2 + 2
