"""The sentence: read the checkpoint, describe it, build the graph, write it, verify what was written, and only then give it its name."""

from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm import tqdm

from model_export.artifact.batch import CUMULATIVE_LENGTHS, PACKED_ROWS
from model_export.artifact.cpu import trim_heap
from model_export.artifact.manifest import FORMAT, MODEL, PREPACKED_FOR, TOKENIZER, Golden, Manifest, Tensor, sha256
from model_export.checkpoints.architecture import Architecture
from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.class_labels import Classifier, classifier_of, pair_labels
from model_export.checkpoints.families import Family, NamedWeights, describe, family_of
from model_export.checkpoints.pooling import pooling_of
from model_export.errors import ExportError
from model_export.graph.attention import LAYOUTS
from model_export.graph.builder import WEIGHTS_FILE, GraphBuilder
from model_export.graph.encoder import Encoder
from model_export.graph.heads import Heads
from model_export.graph.precision import PRECISIONS
from model_export.output.atomic_folder import atomic_folder, check_empty
from model_export.output.prepacked import prepack, prepacked_for
from model_export.tokenization.tokenizer_files import TokenizerFiles, read_vocabulary
from model_export.verification.reference import Reference
from model_export.verification.verify import TOLERANCE, Expected, reference_outputs, verify

CANARY_LENGTH = 17  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A graph that is not written yet, and what is known of it."""

    graph: GraphBuilder
    architecture: Architecture
    family: Family
    heads: Heads
    classifier: Classifier
    reference: Reference


LAYOUT = {"cpu": PACKED_ROWS, "cuda": CUMULATIVE_LENGTHS}


def export(
    source: Path,
    artifact: Path,
    *,
    precision: str = "fp32",
    device: str = "cpu",
    name: str = "",
    prepacked: bool = False,
) -> Manifest:
    """Writes the checkpoint folder `source` as the folder `artifact`/`device`, with weights also packed for this machine where `prepacked` says so.

    Raises ExportError and leaves nothing behind where it cannot.
    """
    if device not in LAYOUT or precision not in PRECISIONS or device not in PRECISIONS[precision].devices:
        known = "; ".join(f"{name} on {' and '.join(one.devices)}" for name, one in PRECISIONS.items())
        raise ExportError(f"precision {precision!r} on device {device!r} is not there; take one of: {known}")
    if prepacked and device != "cpu":
        raise ExportError("prepacked weights are for the CPU: leave out --prepacked, or take --device cpu")
    check_empty(artifact, device)
    checkpoint = Checkpoint(source, name)
    built = build(checkpoint, precision, device)
    architecture = built.architecture
    vocabulary = read_vocabulary(
        source, checkpoint.config, built.family, size=architecture.vocabulary, positions=architecture.positions
    )
    check_tokenizer_fits(built, vocabulary)
    expected = reference_outputs(
        built.reference,
        built.heads.present,
        vocabulary=architecture.vocabulary,
        max_tokens=vocabulary.max_tokens,
        labels=len(built.classifier.names),
    )
    with atomic_folder(artifact / device) as folder:
        vocabulary.save(folder / TOKENIZER)
        with tqdm(
            total=checkpoint.parameters, unit="B", unit_scale=True, desc="writing weights", delay=2, leave=False
        ) as bar:
            metadata = {PREPACKED_FOR: prepacked_for()} if prepacked else None
            built.graph.save(
                folder / MODEL, producer_version=version("bert-service"), written=bar.update, metadata=metadata
            )
        if prepacked:
            prepack(folder / MODEL)
        trim_heap()
        errors = verify(folder / MODEL, expected, built.heads.present, precision, LAYOUT[device])
        manifest = _manifest(
            checkpoint, built, vocabulary, expected, precision=precision, device=device, errors=errors, folder=folder
        )
        manifest.write(folder)
    return manifest


def build(checkpoint: Checkpoint, precision: str, device: str) -> BuiltModel:
    """The graph of a checkpoint. Raises ExportError where a weight is missing, of another shape, or left over."""
    family, architecture = family_of(checkpoint.config), describe(checkpoint.config)
    selected = PRECISIONS[precision]
    parts, graph = NamedWeights(checkpoint, family), GraphBuilder(selected.computes)
    attention = LAYOUTS[LAYOUT[device]](graph, architecture.heads, architecture.hidden)
    reference = Reference(architecture, family, NamedWeights(checkpoint, family))
    centres = selected.centres(reference.centres, 2 * architecture.layers)
    hidden = Encoder(graph, architecture, parts, selected.linear[device](), attention, centres).build()
    classifier = classifier_of(checkpoint.config, parts)
    heads = Heads(graph, architecture, family, parts, classifier, selected.scores(), hidden)
    heads.build()
    parts.ignore_known()
    if unused_weights := checkpoint.unused_weights():
        shown = ", ".join(unused_weights[:5]) + (
            f" and {len(unused_weights) - 5} more" if len(unused_weights) > 5 else ""
        )
        raise ExportError(
            f"the checkpoint has weights that this exporter does not compute: {shown}. The answers would not be the model's"
        )
    return BuiltModel(
        graph=graph, architecture=architecture, family=family, heads=heads, classifier=classifier, reference=reference
    )


def check_tokenizer_fits(built: BuiltModel, vocabulary: TokenizerFiles) -> None:
    """Raises ExportError where the tokenizer has no mask for a masked-LM head, or pads with a token that the model gives positions to."""
    padding = built.architecture.position_offset - 1  # where positions start behind a row for padding
    if padding >= 0 and (pads := vocabulary.special_tokens.get("pad", padding)) != padding:
        raise ExportError(
            f"config.json says pad_token_id {padding}, to which the model gives no position, but the tokenizer pads with {pads}"
        )
    if "fill_mask" in built.heads.present and "mask" not in vocabulary.special_tokens:
        raise ExportError("the checkpoint has a masked-LM head, but its tokenizer has no mask token")


def _manifest(
    checkpoint: Checkpoint,
    built: BuiltModel,
    vocabulary: TokenizerFiles,
    expected: Expected,
    *,
    precision: str,
    device: str,
    errors: dict[str, float],
    folder: Path,
) -> Manifest:
    heads, sizes, pooling = built.heads, asdict(built.architecture), pooling_of(checkpoint)
    kept = ("vocabulary", "hidden", "layers", "heads", "intermediate", "segments")
    return Manifest(
        format=FORMAT,
        exporter=f"bert-service {version('bert-service')}",
        name=checkpoint.name,
        family=built.architecture.family,
        precision=precision,
        device=device,
        layout=LAYOUT[device],
        sizes={name: sizes[name] for name in kept} | {"parameters": checkpoint.parameters},
        max_tokens=vocabulary.max_tokens,
        heads=tuple(heads.present),
        pooling=pooling,
        missing=heads.missing,
        pair_labels=pair_labels(checkpoint, built.family) if "pair" in heads.present else (),
        labels=built.classifier.names,
        label_scores=built.classifier.scores,
        special_tokens=vocabulary.special_tokens,
        inputs={name: Tensor(dtype=dtype, shape=shape) for name, dtype, shape in built.graph.inputs()},
        outputs={name: Tensor(dtype=dtype, shape=shape) for name, dtype, shape in built.graph.outputs()},
        assumed=checkpoint.assumed | built.heads.assumed | vocabulary.assumed,
        verification=errors,
        golden=_golden(expected, precision),
        files={name: sha256(folder / name) for name in (MODEL, WEIGHTS_FILE, TOKENIZER)},
    )


def _golden(expected: Expected, precision: str) -> tuple[Golden, ...]:
    """The seeded sequences with their reference vectors; the one of middle length, which is the canary, first."""
    both = sorted(
        zip(expected.sequences, expected.hidden, strict=True), key=lambda one: abs(len(one[0]) - CANARY_LENGTH)
    )
    tolerance = TOLERANCE[precision]
    return tuple(
        Golden(ids=tuple(ids.tolist()), cls=tuple(np.round(hidden[0], 6).tolist()), tolerance=tolerance)
        for ids, hidden in both
    )
