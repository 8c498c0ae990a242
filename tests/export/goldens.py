"""The answers of transformers for the golden checkpoints, and a function that runs a graph."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from packbert.model_export.artifact.batch import OUTPUTS, Row, Tokens, pack, split
from packbert.model_export.artifact.manifest import MODEL, PACKED_ROWS, Manifest
from packbert.model_export.checkpoint import Checkpoint
from tests.paths import GOLDEN

NAMES = sorted(folder.parent.name for folder in GOLDEN.glob("*/expected.npz"))
ABSOLUTE, RELATIVE = 1e-5, 1e-6  # fp32: ten to fifteen roundings of a logit of size 11
MODULES = ("Transformer", "Pooling", "Normalize")  # of a sentence-transformers checkpoint
HEADS = ("pooler", "pair", "vocabulary", "labels", "tags", "spans", "choices")  # in expected.npz
PER_TOKEN = ("tags", "spans")
Sequences = list[dict[str, np.ndarray]]  # per sequence: the arrays that expected.npz has under its number


@dataclass(frozen=True)
class Artifact:
    folder: Path
    manifest: Manifest

    @property
    def root(self) -> Path:
        """The folder that the service opens."""
        return self.folder.parent

    def run(self, sequences: Sequence[Tokens]) -> list[Row]:
        """All of `sequences` in one batch."""
        return run(self.folder / MODEL, sequences, open_once, of_means=self.manifest.classifies_mean)


Exported = Callable[..., Artifact]  # the fixture: a golden checkpoint's name, a precision -> its artifact


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference relative to fp32's tolerance: at most 1 if the two are equal."""
    return float((np.abs(got - want) / (ABSOLUTE + RELATIVE * np.abs(want).max())).max())


def expected(name: str) -> Sequences:
    content = np.load(GOLDEN / name / "expected.npz")
    found: dict[int, dict[str, np.ndarray]] = {}
    for key in content:
        number, what = key.split(".")
        found.setdefault(int(number), {})[what] = content[key]
    return [found[i] for i in sorted(found)]


@cache
def answers(name: str) -> Any:
    """What a maker of goldens recorded: in the folder of a checkpoint, or as a file such as "tokens/bert"."""
    file = GOLDEN / f"{name}.json"
    return json.loads((file if file.exists() else GOLDEN / name / "answers.json").read_text("utf-8"))


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), "utf-8")


def edit(path: Path, without: Sequence[str] = (), /, **values: object) -> None:
    """Writes a JSON file without some keys and with other values; it need not be there."""
    stated = json.loads(path.read_text("utf-8")) if path.exists() else {}
    write_json(path, {key: value for key, value in stated.items() if key not in without} | values)


def changed(name: str, folder: Path, without: Sequence[str] = (), /, **config: object) -> Path:
    """A copy of a golden checkpoint without some keys and with other values in its config.json."""
    shutil.copytree(GOLDEN / name, folder)
    edit(folder / "config.json", without, **config)
    return folder


def request(sequence: Mapping[str, np.ndarray], heads: Sequence[str], vocabulary: int) -> Tokens:
    """A request for the complete output of each head for a golden sequence."""
    outputs = {head for head in heads if head in OUTPUTS} | (
        {"top_logits", "top_ids", "log_sum_exp"} if "fill_mask" in heads else set()
    )
    masks = tuple(sequence["masks"].tolist()) if "fill_mask" in heads else ()
    return Tokens(
        ids=sequence["ids"], types=sequence["types"], outputs=frozenset(outputs), masks=masks, top_k=vocabulary
    )


def requests_of_all_heads(sequences: Sequences, vocabulary: int) -> list[Tokens]:
    """What asks the model for each head that expected.npz has, or for [CLS] if it has none."""
    heads = ["fill_mask" if head == "vocabulary" else head for head in HEADS if head in sequences[0]] or ["cls"]
    return [request(sequence, heads, vocabulary) for sequence in sequences]


def outputs_of(sequence: Mapping[str, np.ndarray], row: Row) -> dict[str, np.ndarray]:
    """The outputs in a row, under the names and in the shapes of expected.npz."""
    found: dict[str, np.ndarray] = {
        head: row[head] if head in PER_TOKEN else row[head][0] for head in HEADS if head in row
    }
    if "top_ids" in row:
        found["vocabulary"] = np.zeros_like(sequence["vocabulary"])
        np.put_along_axis(found["vocabulary"], row["top_ids"].astype(np.int64), row["top_logits"], axis=1)
    return found


def open_session(model: Path, threads: int = 1) -> ort.InferenceSession:
    """By default on one thread: on models of this size, a second one waits more than it computes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


open_once = lru_cache(maxsize=4)(open_session)  # of a file that does not change


def run(
    model: Path,
    sequences: Sequence[Tokens],
    opened: Callable[[Path], ort.InferenceSession] = open_session,
    *,
    layout: str = PACKED_ROWS,
    of_means: bool = False,
) -> list[Row]:
    session = opened(model)
    batch = pack(sequences, layout, of_means=of_means)
    names = sorted(batch.outputs)
    feeds = {one.name: batch.feeds[one.name] for one in session.get_inputs()}
    return split(batch, dict(zip(names, session.run(names, feeds), strict=True)))


def hidden_states(artifact: Artifact, sequences: Sequences) -> list[np.ndarray]:
    """The last layer's output for every token."""
    outputs = frozenset({"tokens"})
    return [
        row["tokens"]
        for row in artifact.run([Tokens(ids=s["ids"], types=s["types"], outputs=outputs) for s in sequences])
    ]


def sentence_transformers_checkpoint(folder: Path, pooling: Any, modules: Sequence[str] = MODULES) -> Checkpoint:
    """The golden BERT as sentence-transformers saves it: with a list of modules and the config of its pooling."""
    shutil.copytree(GOLDEN / "bert", folder)
    listed = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(modules)
    ]
    write_json(folder / "modules.json", listed)
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", pooling)
    return Checkpoint(folder)
