"""`python -m benchmarks.engine.contenders.prepare`: makes what `python -m benchmarks.engine` measures.

The contenders' environment and their models, and our artifacts of every precision that this machine can run. With
ENCODER and PAIRS of `benchmarks.engine.accuracy` also the contenders' models of that encoder. What is there already and
still current is kept.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.engine.peak import compile_loops
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import BUILD, SIZES, artifact, checkpoint, exporter_digest
from benchmarks.harness.environments import programs
from packbert.model_export.build import PRECISIONS
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export
from packbert.service.artifact import open_artifact
from packbert.service.tokenization.encoding import EncodeOptions
from packbert.service.tokenization.tokenizer import Tokenizer

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
MODELS = BUILD / "contenders"
EVERYWHERE = ("fp32", "int8")  # what any machine can export
CALIBRATION_TEXTS = {"random": 32, "trained": 300}  # a range of random weights serves no accuracy, only a speed
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.contenders.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    parser.add_argument("--encoder", type=Path, help="with --pairs: also the models for benchmarks.engine.accuracy")
    parser.add_argument("--pairs", type=Path)
    arguments = parser.parse_args()
    compile_loops()
    for precision, reason in our_artifacts(arguments.size)[1].items():
        print(f"ours {precision} is left out: {reason}")
    models_of_size(arguments.size)
    if arguments.encoder:
        models_of_encoder(arguments.encoder, arguments.pairs)


def our_artifacts(size: str) -> tuple[dict[str, Path], dict[str, str]]:
    """Our artifacts by precision, and why the other precisions cannot be exported on this machine.

    Raises ExportError for a precision of EVERYWHERE.
    """
    made, refused = {}, {}
    for precision in (name for name, one in PRECISIONS.items() if "cpu" in one.devices):
        try:
            made[precision] = artifact(size, precision)
        except ExportError as error:
            if precision in EVERYWHERE:
                raise
            refused[precision] = str(error)
    return made, refused


def contender_python() -> Path:
    """The interpreter of the contenders' environment, which is made where it is missing."""
    return programs(REQUIREMENTS, BUILD / "environments" / "contenders") / "python"


def worker_command(name: str, folder: Path, threads: int, pooling: str) -> list[str]:
    """The command line of a contender's process with the models in `folder`."""
    module = "benchmarks.engine.contenders.worker"
    return [str(contender_python()), "-m", module, name, str(folder), str(threads), pooling]


def models_of_size(size: str) -> Path:
    """The folder of the contenders' models of the random checkpoint `size`."""
    drawn = mixes.shuffled(mixes.STS_B)[: CALIBRATION_TEXTS["random"]]
    texts = mixes.texts(drawn, vocabulary=SIZES[size]["vocab_size"], seed=11)
    return _models(checkpoint(size), MODELS / size, [tokens.ids.tolist() for tokens in texts])


def models_of_encoder(encoder: Path, pairs: Path) -> Path:
    """The folder of the contenders' models of a trained encoder; they are calibrated with texts of the train split."""
    folder = encoder_folder(encoder)
    texts = [text for pair in mixes.read_pairs(pairs, "train")[0] for text in pair]
    step = len(texts) // CALIBRATION_TEXTS["trained"]
    return _models(encoder, folder, None, texts[:: max(1, step)])


def encoder_folder(encoder: Path) -> Path:
    return MODELS / f"encoder-{encoder.resolve().parent.name}"


def _models(source: Path, folder: Path, ids: Iterable[list[int]] | None, texts: Sequence[str] = ()) -> Path:
    made = folder / "ragged.exporter"
    if not made.is_file() or made.read_text() != exporter_digest():
        folder.mkdir(parents=True, exist_ok=True)
        for old in ("ragged", "weights-int8"):
            shutil.rmtree(folder / old, ignore_errors=True)
        export(source, folder / "ragged", precision="fp32", device="cpu")
        made.write_text(exporter_digest())
    calibration = list(ids) if ids is not None else encode_texts(folder / "ragged", texts)
    (folder / "calibration.json").write_text(json.dumps(calibration))
    command = [contender_python(), "-m", "benchmarks.engine.contenders.convert", source, folder]
    subprocess.run(list(map(str, command)), check=True, env=os.environ | OFFLINE)
    return folder


def encode_texts(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of `texts` by the tokenizer of our artifact in `folder`."""
    tokenizer = Tokenizer(open_artifact(folder), 100_000)
    tokenizer.open()
    encoded = asyncio.run(tokenizer.encode(texts, EncodeOptions(outputs=frozenset({"mean"})), "right"))
    tokenizer.close()
    return [np.asarray(tokens.ids).tolist() for tokens in encoded]


if __name__ == "__main__":
    main()
