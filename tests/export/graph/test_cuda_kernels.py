"""Every node of the CUDA graphs has a kernel on the GPU and does not compute with shapes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from packbert.model_export.build import build_graph
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.families import FAMILIES, architecture_of
from packbert.model_export.graph.builder import GraphBuilder
from tests.checkpoints import checkpoint, names_in
from tests.export.goldens import NAMES, edit
from tests.export.graph.cuda_kernels import KERNELS, NodeKind, node_kinds
from tests.paths import GOLDEN

MODULES = names_in("sentence-transformers")
ON_HOST = {"Shape", "Size"}  # their results are in the host's memory, and ONNX Runtime computes with them there


def without_kernel(kinds: set[NodeKind]) -> set[NodeKind]:
    return {kind for kind in kinds if not any(kernel.takes(kind) for kernel in KERNELS)}


def kinds_of_graphs(folder: Path, *, packed: bool) -> set[NodeKind]:
    """Of the model's graph, whose attention is `packed` or in rows, and that of the attention; in both precisions."""
    kinds: set[NodeKind] = set()
    for precision in ("fp32", "fp16"):
        built = build_graph(Checkpoint(folder), precision, "cuda")
        model, attention = (node_kinds(one) for one in (built.graph, built.attention))
        operators = {kind.operator for kind in model}
        assert ("PackedMultiHeadAttention" in operators) == packed
        assert not operators & ON_HOST
        kinds |= model | attention
    return kinds


def with_narrow_heads(source: Path, folder: Path) -> Path:
    """The checkpoint `source` with heads of 4 channels, which the packed kernels do not take."""
    shutil.copytree(source, folder)
    for path in folder.rglob("config.json"):
        config = json.loads(path.read_text("utf-8"))
        edit(path, **{key: config[key] * 2 for key in ("num_attention_heads", "n_heads") if key in config})
    return folder


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[NodeKind]]:
    """By checkpoint: each family with each of its heads, and the modules of sentence-transformers over BERT.

    The graphs are those with packed attention, of a family also those with attention in rows.
    """
    root = tmp_path_factory.mktemp("checkpoints")
    folders = {name: GOLDEN / name for name in NAMES}
    folders |= {name: checkpoint(name, root / name) for name in MODULES}
    found = {}
    for name, folder in folders.items():
        is_packed = not architecture_of(Checkpoint(folder).config).positional  # else always in rows
        found[name] = kinds_of_graphs(folder, packed=is_packed)
        if is_packed and name in FAMILIES:
            in_rows = with_narrow_heads(folder, root / f"{name} in rows")
            found[name] |= kinds_of_graphs(in_rows, packed=False)
    return found


@pytest.mark.parametrize("name", [*NAMES, *MODULES])
def test_every_node_has_a_kernel(name: str, kinds: dict[str, set[NodeKind]]) -> None:
    assert without_kernel(kinds[name]) == set()


def test_every_row_of_the_table_is_of_an_operator_that_is_used(kinds: dict[str, set[NodeKind]]) -> None:
    used = set().union(*kinds.values())
    assert [kernel for kernel in KERNELS if not any(kernel.takes(kind) for kind in used)] == []


def test_a_node_without_a_kernel_is_found_in_a_loop() -> None:
    """GatherND has no kernel for int32, and Sin is not in the table."""
    g = GraphBuilder()
    count, pairs = g.input("count", "int64", [1]), g.input("pairs", "int64", ["n", 1])
    start = {g.constant(np.zeros(3, np.int32)): "int32"}
    g.loop(count, start, lambda _, last: [g.op("Add", last[0], g.op("GatherND", last[0], pairs))])
    g.op("Sin", g.input("x", "float32", ["n"]))
    assert {(kind.operator, kind.types) for kind in without_kernel(node_kinds(g))} == {
        ("GatherND", ("int32", "int64")),
        ("Sin", ("float",)),
    }
