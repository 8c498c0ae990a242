"""The arrangement of texts for the engines that ours is compared with, and their processes."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from benchmarks.engine.contenders.arrangement import PLAIN, Arranged, Arrangement, Run, Tuned, candidates
from benchmarks.engine.contenders.engines.onnx_runtime import OnnxRuntime
from benchmarks.engine.contenders.padding import CLS, INPUTS, MEAN, Ids, Vectors, pad, pooled
from benchmarks.engine.contenders.process import ContenderError, ContenderProcess
from benchmarks.engine.contenders.ragged import write_vectors_only
from benchmarks.engine.contenders.table import CONTENDERS
from benchmarks.harness import mixes
from packbert.model_export.artifact.batch import Tokens, pack
from packbert.model_export.graph.builder import GraphBuilder
from packbert.model_export.lazy_weight import LazyWeight

LENGTHS = [7, 60, 3, 12, 12, 31, 5, 60]
SECONDS = {Arrangement(1, 128): 3.0, Arrangement(2, 128): 1.0}
WORKER = """
import numpy as np
from benchmarks.engine.contenders.arrangement import Tuned
from benchmarks.engine.contenders.worker import serve

class Fake:
    def tune(self, texts, known): print("noise"); return Tuned(2.0, f"{len(texts)} texts", known)
    def seconds(self, texts): return float(texts[0][0])
    def vectors(self, texts): return np.array([[len(ids)] for ids in texts], np.float32)

def opened(): FAIL; return Fake()
serve(opened)
"""


def texts_of(lengths: Sequence[int]) -> list[Ids]:
    return [tokens.ids for tokens in mixes.texts(list(lengths), vocabulary=64)]


def first_ids(texts: Sequence[Ids]) -> Vectors:
    return np.array([[ids[0], len(ids)] for ids in texts], np.float32)


@pytest.mark.parametrize("bucket_tokens", [None, 1, 24, 64, 1000])
def test_every_text_is_in_one_batch_and_no_batch_is_too_large(bucket_tokens: int | None) -> None:
    groups = Arrangement(1, bucket_tokens).groups(LENGTHS)
    assert sorted(place for group in groups for place in group) == list(range(len(LENGTHS)))
    for group in groups if bucket_tokens else []:
        assert len(group) == 1 or max(LENGTHS[place] for place in group) * len(group) <= (bucket_tokens or 0)


def test_batches_hold_texts_of_similar_lengths_and_the_longest_come_first() -> None:
    groups = Arrangement(1, 64).groups(LENGTHS)
    assert [[LENGTHS[place] for place in group] for group in groups] == [[60], [60], [31, 12], [12, 7, 5, 3]]


def test_one_batch_keeps_the_order_of_the_texts() -> None:
    assert PLAIN.groups(LENGTHS) == [list(range(len(LENGTHS)))]


@pytest.mark.parametrize("arrangement", [PLAIN, Arrangement(1, 64), Arrangement(2, 24), Arrangement(2, 1000)])
def test_the_vectors_come_in_the_order_of_the_texts(arrangement: Arrangement) -> None:
    opened: list[int] = []

    def open_engine(streams: int) -> Run:
        opened.append(streams)
        return first_ids

    arranged = Arranged(open_engine, 2, plain=False)
    arranged.arrangement = arrangement
    texts = texts_of(LENGTHS)
    assert np.array_equal(arranged.vectors(texts), first_ids(texts))
    assert opened == [arrangement.streams]


def test_an_arrangement_that_gives_the_same_batches_is_tried_once() -> None:
    assert list(candidates([512, 512, 512], 2)) == [
        Arrangement(1, 128),
        Arrangement(2, 128),
    ]
    assert list(candidates([16], 2)) == [Arrangement(1, 128)]


class WithClock(Arranged):
    """Takes as many seconds as a table says."""

    def seconds(self, texts: Sequence[Ids]) -> float:
        return SECONDS.get(self.arrangement, 2.0) * bool(texts)


def test_the_fastest_arrangement_is_taken_unless_the_contender_runs_one_batch() -> None:
    texts = texts_of(LENGTHS * 4)
    arranged = WithClock(lambda streams: first_ids, 2, plain=False)
    assert arranged.tune(texts) == Tuned(1.0, str(Arrangement(2, 128)), (2, 128))
    assert arranged.tune(texts, (1, 512)) == Tuned(2.0, str(Arrangement(1, 512)), (1, 512))
    assert WithClock(lambda streams: first_ids, 2, plain=True).tune(texts).shown == "one batch"


def test_pooling_leaves_out_the_padding() -> None:
    texts = texts_of([2, 3])
    hidden = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    assert pooled(hidden, texts, CLS).tolist() == [[0, 1], [6, 7]]
    assert pooled(hidden, texts, MEAN).tolist() == [[1, 2], [8, 9]]
    assert pad(texts)["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.fixture(scope="module")
def padded_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with the inputs of a `transformers` export; a hidden state is the row of its id in a table."""
    graph, random = GraphBuilder(), np.random.default_rng(3)
    inputs = [graph.input(name, "int64", ["batch", "sequence"]) for name in INPUTS]
    table = graph.weight("table", LazyWeight((64, 8), lambda: random.standard_normal((64, 8), np.float32)))
    rest = graph.op("Cast", graph.op("Mul", *inputs[1:]), to=1)
    hidden = graph.op(
        "Add", graph.op("Gather", table, inputs[0]), graph.op("Unsqueeze", rest, graph.constant(np.array([2])))
    )
    graph.output("last_hidden_state", hidden, "float32", ["batch", "sequence", 8])
    path = tmp_path_factory.mktemp("padded") / "padded.onnx"
    graph.save(path)
    return path


@pytest.mark.parametrize("pooling", [CLS, MEAN])
def test_sorted_batches_in_streams_answer_as_one_batch(padded_graph: Path, pooling: str) -> None:
    arranged = Arranged(lambda streams: OnnxRuntime(padded_graph, 2, streams, pooling, {}), 2, plain=False)
    texts = texts_of(LENGTHS)
    one_batch = arranged.vectors(texts)
    arranged.arrangement = Arrangement(2, 64)
    np.testing.assert_allclose(arranged.vectors(texts), one_batch, rtol=0, atol=1e-6)


def test_our_graph_without_its_other_heads_gives_the_same_vectors(bert_artifact: Path, tmp_path: Path) -> None:
    folder = bert_artifact / "cpu"
    sequences = [Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({CLS, MEAN})) for ids in texts_of([9, 4])]
    shutil.copy(folder / "model.onnx.data", tmp_path)
    write_vectors_only(folder / "model.onnx", tmp_path / "vectors.onnx")
    sessions = [
        ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        for path in (folder / "model.onnx", tmp_path / "vectors.onnx")
    ]
    whole, cut = (
        session.run([CLS, MEAN], {i.name: pack(sequences).feeds[i.name] for i in session.get_inputs()})
        for session in sessions
    )
    assert [output.name for output in sessions[1].get_outputs()] == [CLS, MEAN]
    assert all(np.array_equal(a, b) for a, b in zip(whole, cut, strict=True))


@pytest.fixture
def worker() -> Iterator[ContenderProcess]:
    process = ContenderProcess([sys.executable, "-c", WORKER.replace("FAIL; ", "")])
    yield process
    process.close()


def test_a_process_answers_whatever_its_library_prints(worker: ContenderProcess) -> None:
    worker.wait_until_ready()
    texts = texts_of(LENGTHS)
    assert worker.tune(texts).shown == f"{len(texts)} texts"
    assert worker.seconds(texts) == float(texts[0][0])
    assert worker.vectors(texts)[:, 0].tolist() == LENGTHS


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (WORKER.replace("FAIL", "raise RuntimeError('no such instruction')"), "RuntimeError: no such instruction"),
        ("import sys; sys.exit('missing')", "ended with status 1: missing"),
    ],
)
def test_a_process_that_does_not_start_gives_the_reason(program: str, reason: str) -> None:
    process = ContenderProcess([sys.executable, "-c", program])
    with pytest.raises(ContenderError, match=reason):
        process.wait_until_ready()
    process.close()


def test_every_contender_has_a_precision_and_one_batch_alone_is_not_arranged() -> None:
    assert {name.rsplit(" ", 1)[1] for name in CONTENDERS} == {"fp32", "bf16", "int8"}
    assert all(contender.plain == (" padded " in name) for name, contender in CONTENDERS.items())
