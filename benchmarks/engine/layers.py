"""`python -m benchmarks.engine.layers ENCODER PAIRS`: where int8 costs accuracy.

ENCODER and PAIRS are those of `benchmarks.engine.accuracy`; every fifth pair is taken. Prints by layer and product
1 - cosine of the mean-pooled vectors to fp32, times 10,000, averaged over the texts, with this product alone in int8;
below, with all products of a column in fp32 and all others in int8.
"""

import itertools
import tempfile
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.engine.accuracy import BATCH_TEXTS, Vectors, parse_arguments
from benchmarks.harness.machine import table, write
from benchmarks.harness.mixes import read_pairs
from packbert.model_export.artifact.batch import Tokens, pack
from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.build import PRECISIONS, build_graph
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.graph.builder import GraphBuilder, Value
from packbert.model_export.graph.linear import CpuLinear, Int8PerTokenLinear, Linear, Norm
from packbert.model_export.lazy_weight import LazyWeight
from packbert.service.engine.cpu import available_cores
from packbert.service.engine.session import CpuSession, configure_inference_thread
from packbert.service.tasks.embed import unit_length

# in the order of a layer
PRODUCTS = ("query", "key and value", "attention output", "intermediate", "feed-forward output")
EVERY = 5
TEN_THOUSAND = 1e4


class Mixed(Linear):
    """Puts those of the encoder's products in int8 whose numbers, counted from 0 in their order, are in `selected`."""

    def __init__(self, selected: Container[int]) -> None:
        self._selected = selected
        self._numbers = itertools.count()
        self._int8, self._fp32 = Int8PerTokenLinear(), CpuLinear()

    def _next(self) -> Linear:
        return self._int8 if next(self._numbers) in self._selected else self._fp32

    def product(self, g: GraphBuilder, x: Value, weight: LazyWeight) -> Value:
        return self._next().product(g, x, weight)

    def affine(self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight) -> Value:
        return self._next().affine(g, x, weight, bias)

    def linear_activation(
        self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, activation: str
    ) -> Value:
        result = self._next().linear_activation(g, x, weight, bias, activation)
        self._int8.note_activation(result, activation)
        return result

    def add_and_norm(
        self, g: GraphBuilder, x: Value, weight: LazyWeight, bias: LazyWeight, residual: Value, norm: Norm
    ) -> Value:
        return self._next().add_and_norm(g, x, weight, bias, residual, norm)


def main() -> None:
    arguments = parse_arguments("layers", __doc__)
    configure_inference_thread()
    texts = sequences(arguments.encoder, [text for pair in read_pairs(arguments.pairs)[0][::EVERY] for text in pair])
    layers = Checkpoint(arguments.encoder).config["num_hidden_layers"]
    every = frozenset(range(layers * len(PRODUCTS)))
    exact = encode(arguments.encoder, texts, frozenset())

    def cost(selected: frozenset[int]) -> float:
        return TEN_THOUSAND * float(1 - (encode(arguments.encoder, texts, selected) * exact).sum(axis=1).mean())

    alone = [[cost(frozenset({layer * len(PRODUCTS) + i})) for i in range(len(PRODUCTS))] for layer in range(layers)]
    without = [cost(frozenset(n for n in every if n % len(PRODUCTS) != i)) for i in range(len(PRODUCTS))]
    whole = cost(every)
    rows = [[f"layer {layer}", *costs] for layer, costs in enumerate(alone)]
    print(
        table(["alone in int8", *PRODUCTS], rows),
        table(["alone in fp32", *PRODUCTS], [["all layers", *without]]),
        f"all in int8: {whole:.3g}",
        sep="\n\n",
    )
    result = {"all_in_int8": whole, "alone_in_int8": alone, "alone_in_fp32": without}
    write(
        arguments.output,
        result,
        details={"encoder": arguments.encoder.resolve().parent.name, "products": PRODUCTS, "texts": len(texts)},
    )


def sequences(encoder: Path, texts: Sequence[str]) -> list[Tokens]:
    """Sorted by length, so that a batch has texts of similar lengths."""
    tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    tokenizer.no_padding()
    rows = sorted((np.array(one.ids, np.int32) for one in tokenizer.encode_batch(texts)), key=len)
    return [Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({"mean"})) for ids in rows]


def encode(encoder: Path, texts: Sequence[Tokens], selected: frozenset[int]) -> Vectors:
    """Unit vectors, with the products `selected` in int8."""
    PRECISIONS["int8"] = replace(PRECISIONS["int8"], linear={"cpu": lambda: Mixed(selected)})
    with tempfile.TemporaryDirectory() as folder:
        build_graph(Checkpoint(encoder), "int8", "cpu").graph.save(Path(folder) / MODEL)
        session = CpuSession(Path(folder) / MODEL, threads=available_cores())
        batches = [pack(texts[i : i + BATCH_TEXTS]) for i in range(0, len(texts), BATCH_TEXTS)]
        return unit_length(np.concatenate([session.run(["mean"], batch.feeds)[0] for batch in batches]))


if __name__ == "__main__":
    main()
