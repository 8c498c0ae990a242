"""`python -m benchmarks.engine.accuracy ENCODER PAIRS`: what bf16 and int8 cost on trained weights, ours and others.

ENCODER is the checkpoint folder of a sentence encoder with mean pooling (all-MiniLM-L6-v2: Spearman 0.820 in fp32).
PAIRS is the STS benchmark as a tab-separated file, gzipped or not, with the columns split, score, sentence1, sentence2.
Prints by engine and precision the Spearman correlation of the vectors' cosine with the human scores on the test split,
and the cosines to our vectors in fp32. The others' models are made by `benchmarks.engine.contenders.prepare`.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engine.ceiling import silence_warnings
from benchmarks.engine.contenders.prepare import encode_texts, models_of_encoder, worker_command
from benchmarks.engine.contenders.process import ContenderError, ContenderProcess
from benchmarks.engine.contenders.table import CONTENDERS
from benchmarks.harness.checkpoints import ON_CPU
from benchmarks.harness.machine import table, write
from benchmarks.harness.mixes import read_pairs
from packbert.model_export.artifact.batch import Row
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.engine.cpu import available_cores
from packbert.service.engine.runner import ModelRunner
from packbert.service.tasks.embed import unit_length
from packbert.service.tokenization.encoding import EncodeOptions
from packbert.service.tokenization.tokenizer import Tokenizer

Vectors = NDArray[np.float32]
BATCH_TEXTS, TUNING_TEXTS = 32, 64


def main() -> None:
    arguments = parse_arguments("accuracy", __doc__)
    pairs, scores = read_pairs(arguments.pairs)
    texts = [text for pair in pairs for text in pair]
    folder = models_of_encoder(arguments.encoder, arguments.pairs)
    vectors = our_vectors(arguments.encoder, texts) | others_vectors(folder, texts)
    result = {name: compare(rows, vectors["ours fp32"], scores) for name, rows in vectors.items()}
    print(
        table(
            ["engine", "Spearman", "lowest cosine to fp32", "mean"],
            [[name, *(f"{value:.4f}" for value in one.values())] for name, one in result.items()],
        )
    )
    write(arguments.output, result, details={"encoder": arguments.encoder.resolve().parent.name, "pairs": len(pairs)})


def compare(rows: Vectors, fp32: Vectors, scores: NDArray[np.float64]) -> dict[str, float]:
    """The correlation with `scores` of the unit vectors `rows`, two rows a pair, and their cosines to `fp32`."""
    similar = (rows[0::2] * rows[1::2]).sum(axis=1)
    cosines = (rows * fp32).sum(axis=1)
    return {
        "spearman": spearman(similar, scores),
        "lowest_cosine_to_fp32": float(cosines.min()),
        "mean_cosine_to_fp32": float(cosines.mean()),
    }


def our_vectors(encoder: Path, texts: list[str]) -> dict[str, Vectors]:
    """Our vectors by precision, without those that this machine cannot compute."""
    found = {}
    for precision in ON_CPU:
        try:
            found[f"ours {precision}"] = encode(encoder, precision, texts)
        except ExportError as error:
            print(f"ours {precision} is left out: {error}")
    return found


def others_vectors(folder: Path, texts: list[str]) -> dict[str, Vectors]:
    """The vectors of each contender with the models in `folder`, without those that run the same in one batch."""
    ids = [np.array(one, np.int32) for one in encode_texts(folder / "ragged", texts)]
    found = {}
    for name in (name for name, contender in CONTENDERS.items() if not contender.plain):
        process = ContenderProcess(worker_command(name, folder, available_cores(), "mean"))
        try:
            process.wait_until_ready()
            process.tune(ids[:TUNING_TEXTS])
            found[name] = unit_length(process.vectors(ids))
        except ContenderError as error:
            print(f"{name} is left out: {error}")
        finally:
            process.close()
    return found


def parse_arguments(name: str, about: str | None) -> argparse.Namespace:
    """Parses the command line of a benchmark that takes ENCODER and PAIRS, and silences ONNX Runtime's warnings."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.engine.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("encoder", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--output", default=name, help="name of the JSON file in benchmarks/results")
    arguments = parser.parse_args()
    silence_warnings()
    return arguments


def encode(encoder: Path, precision: str, texts: list[str]) -> Vectors:
    """Unit vectors of the texts, mean pooling, through our exporter, tokenizer and model runner."""
    with tempfile.TemporaryDirectory() as folder:
        export(encoder, Path(folder), precision=precision)
        artifact = open_artifact(Path(folder))
        runner, tokenizer = ModelRunner(artifact, available_cores()), Tokenizer(artifact, 100_000)
        runner.open()
        tokenizer.open()
        work = asyncio.run(tokenizer.encode(texts, EncodeOptions(outputs=frozenset({"mean"})), "right"))
        rows = [
            finite(row)["mean"][0]
            for i in range(0, len(work), BATCH_TEXTS)
            for row in runner.run_sync(work[i : i + BATCH_TEXTS])[0]
        ]
        runner.close()
        tokenizer.close()
    return unit_length(np.stack(rows))


def finite(row: Row | None) -> Row:
    """`row`; raises ValueError if the model computed a value that is not finite."""
    if row is None:
        raise ValueError("a row of the answer is not finite")
    return row


def spearman(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of their ranks."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[group], np.float64)


if __name__ == "__main__":
    main()
