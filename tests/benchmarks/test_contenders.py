"""The arrangement of texts for the engines that ours is compared with, and their processes."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from benchmarks.engine.contenders import CONTENDERS, Arranged, Arrangement
from benchmarks.engine.engines import CLS, INPUTS, Ids, Vectors, open_onnx_runtime, pad, tokens_of
from benchmarks.engine.prepare import write_cls_only
from benchmarks.engine.process import ContenderError, ContenderProcess
from benchmarks.harness import mixes
from packbert.model_export.artifact.batch import pack
from packbert.model_export.graph.builder import GraphBuilder
from packbert.model_export.lazy_weight import LazyWeight

LENGTHS = [7, 60, 3, 12, 12, 31, 5, 60]
PLAIN = Arrangement()
WORKER = """
import sys
from multiprocessing.connection import Connection
from benchmarks.engine.worker import serve

class Fake:
    def choices(self, texts): print("noise"); return {"slow": 2.0, f"{len(texts)} texts": 1.0}
    def seconds(self, texts, choice): return choice * texts[0][0]

def opened(): FAIL; return Fake()
serve(Connection(int(sys.argv[1])), opened)
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
    arranged = Arranged({1: first_ids, 2: first_ids}, 2, plain=False)
    texts = texts_of(LENGTHS)
    assert np.array_equal(arranged.vectors(texts, arrangement), first_ids(texts))


@pytest.mark.parametrize(
    ("lengths", "plain", "tried"),
    [
        ([512, 512, 512], False, [Arrangement(1, 128), Arrangement(2, 128)]),
        ([16], False, [Arrangement(1, 128)]),
        ([512, 512, 512], True, [PLAIN]),
    ],
)
def test_an_arrangement_that_gives_the_same_batches_is_tried_once(
    lengths: list[int], plain: bool, tried: list[Arrangement]
) -> None:
    arranged = Arranged({1: first_ids, 2: first_ids}, 2, plain=plain)
    assert arranged.choices(texts_of(lengths)) == {str(one): one for one in tried}


def test_the_mask_leaves_out_the_padding() -> None:
    assert pad(texts_of([2, 3]))["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


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


def test_sorted_batches_in_streams_answer_as_one_batch(padded_graph: Path) -> None:
    runs = {streams: open_onnx_runtime(padded_graph, 2, streams, {}) for streams in (1, 2)}
    arranged, texts = Arranged(runs, 2, plain=False), texts_of(LENGTHS)
    found = arranged.vectors(texts, Arrangement(2, 64))
    np.testing.assert_allclose(found, arranged.vectors(texts, PLAIN), rtol=0, atol=1e-6)


def test_our_graph_without_its_other_heads_gives_the_same_vectors(bert_artifact: Path, tmp_path: Path) -> None:
    folder, feeds = bert_artifact / "cpu", pack(tokens_of(texts_of([9, 4]))).feeds
    shutil.copy(folder / "model.onnx.data", tmp_path)
    write_cls_only(folder / "model.onnx", tmp_path / "vectors.onnx")
    whole, cut = (
        ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        for path in (folder / "model.onnx", tmp_path / "vectors.onnx")
    )
    vectors = [session.run([CLS], {i.name: feeds[i.name] for i in session.get_inputs()})[0] for session in (whole, cut)]
    assert [output.name for output in cut.get_outputs()] == [CLS]
    assert np.array_equal(*vectors)


@pytest.fixture
def worker() -> Iterator[ContenderProcess]:
    process = ContenderProcess([sys.executable, "-c", WORKER.replace("FAIL; ", "")])
    yield process
    process.close()


def test_a_process_answers_whatever_its_library_prints(worker: ContenderProcess) -> None:
    worker.wait_until_ready()
    ids = [one.tolist() for one in texts_of(LENGTHS)]
    assert worker.tune(ids) == (ids[0][0], f"{len(ids)} texts")  # the fastest of its choices
    assert worker.seconds() == ids[0][0]


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
