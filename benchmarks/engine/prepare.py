"""`python -m benchmarks.engine.prepare`: makes what `python -m benchmarks.engine` measures.

The contenders' environment and their models, and our artifacts of every precision that this machine can run. What is
there already and still current is kept.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx

from benchmarks.engine.contenders import RAGGED
from benchmarks.engine.engines import CLS
from benchmarks.engine.process import OFFLINE
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import BUILD, SIZES, artifact, checkpoint, exporter_digest
from benchmarks.harness.environments import programs
from packbert.model_export.build import PRECISIONS
from packbert.model_export.errors import ExportError
from packbert.model_export.export import export

REQUIREMENTS = Path(__file__).with_name("contenders.txt")
MODELS = BUILD / "contenders"
EVERYWHERE = ("fp32", "int8")  # what any machine can export
CALIBRATION_TEXTS = 32  # few: a range of random weights serves no accuracy, only a speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    size = parser.parse_args().size
    for precision, reason in our_artifacts(size)[1].items():
        print(f"ours {precision} is left out: {reason}")
    make_models(size)


def our_artifacts(size: str) -> tuple[dict[str, Path], dict[str, str]]:
    """Our artifacts by precision, and why the other precisions cannot be exported on this machine.

    Raises ExportError for a precision of EVERYWHERE.
    """
    made, refused = {}, {}
    for precision in (name for name, one in PRECISIONS.items() if "cpu" in one.linear):
        try:
            made[precision] = artifact(size, precision)
        except ExportError as error:
            if precision in EVERYWHERE:
                raise
            refused[precision] = str(error)
    return made, refused


def contender_python() -> str:
    """The interpreter of the contenders' environment, which is made if it is missing."""
    return str(programs(REQUIREMENTS, BUILD / "environments" / "contenders") / "python")


def make_models(size: str) -> None:
    """The contenders' models of the random checkpoint `size`."""
    source, folder = checkpoint(size), MODELS / size
    made = folder / "ragged.exporter"
    if not made.is_file() or made.read_text() != exporter_digest():
        folder.mkdir(parents=True, exist_ok=True)
        for old in ("ragged", "weights-int8"):
            shutil.rmtree(folder / old, ignore_errors=True)
        export(source, folder / "ragged", precision="fp32", device="cpu")
        write_cls_only(folder / "ragged/cpu/model.onnx", folder / RAGGED)
        made.write_text(exporter_digest())
    lengths = mixes.shuffled(mixes.STS_B)[:CALIBRATION_TEXTS]
    texts = mixes.texts(lengths, vocabulary=SIZES[size]["vocab_size"], seed=11)
    (folder / "calibration.json").write_text(json.dumps([tokens.ids.tolist() for tokens in texts]))
    command = [contender_python(), "-m", "benchmarks.engine.convert", str(source), str(folder)]
    subprocess.run(command, check=True, env=os.environ | OFFLINE)


def write_cls_only(model: Path, path: Path) -> None:
    """`model` with the output `cls` and the nodes that it needs, over the same file of weights.

    OpenVINO computes all outputs of a graph, and refuses nodes of other heads.
    """
    read = onnx.load(model, load_external_data=False)
    graph, needed, nodes = read.graph, {CLS}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    kept = {
        "output": [output for output in graph.output if output.name == CLS],
        "node": nodes[::-1],
        "initializer": [weight for weight in graph.initializer if weight.name in needed],
        "input": [given for given in graph.input if given.name in needed],
    }
    for name, values in kept.items():
        graph.ClearField(name)
        getattr(graph, name).extend(values)
    onnx.save(read, path)


if __name__ == "__main__":
    main()
