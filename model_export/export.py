"""Exports a checkpoint: graphs, tokenizer, verification, manifest, prepacked weights."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import onnxruntime as ort

from .artifact.cpu import BF16, cpu_signature, has_fast_int8, trim_heap, why_bf16_unavailable
from .artifact.manifest import (
    ATTENTION,
    FORMAT,
    HEADS,
    LAYERS,
    MODEL,
    PREPACKED_FOR,
    TOKENIZER,
    WEIGHTS,
    Embedding,
    Golden,
    Manifest,
    files_of,
    sha256,
)
from .artifact.prepack import prepack
from .build import PRECISIONS, BuiltModel, build_graph, check_tokenizer_fits
from .checkpoint import Checkpoint
from .errors import ExportError, PrecisionError
from .folder import atomic_folder, check_empty
from .graph.encoder import write_layers
from .labels import pair_labels, relevance_scores
from .sentence import SentenceModel, sides
from .tokenizer import TokenizerFiles, read_tokenizer
from .verification.reference import one_word_texts
from .verification.verify import TOLERANCE, Expected, measure_speeds, reference_outputs, verify

CANARY_LENGTH = 17  # tokens
SIZES = ("vocabulary", "hidden", "layers", "heads", "intermediate", "segments")
AUTO = "auto"
AUTO_MIN_COSINE = {"int8": 0.99, "bf16": 0.9998, "fp16": 0.9999}  # of the check's vectors; below it auto goes on
AUTO_ORDER = {"cpu": ("int8", "bf16"), "cuda": ("fp16",)}  # the fastest first; the last resort is fp32


def make_manifest(
    checkpoint: Checkpoint,
    built: BuiltModel,
    tokenizer: TokenizerFiles,
    expected: Expected,
    errors: dict[str, float],
    folder: Path,
    *,
    precision: str,
    device: str,
) -> Manifest:
    """The manifest of the artifact in `folder`; `expected` and `errors` are the results of its verification."""
    heads, parts = built.heads, built.parts
    return Manifest(
        format=FORMAT,
        exporter=f"packbert {metadata.version('packbert')}",
        name=checkpoint.name,
        identity=checkpoint.identity,
        family=parts.architecture.family,
        precision=precision,
        device=device,
        layout=built.layout,
        sizes={name: getattr(parts.architecture, name) for name in SIZES} | {"parameters": checkpoint.parameters},
        max_tokens=tokenizer.max_tokens,
        heads=tuple(heads.present),
        embedding=_embedding(heads.sentence),
        sparse=heads.sentence.sparse if "sparse" in heads.present else "",
        sides=sides(heads.sentence, tokenizer),
        missing=heads.missing,
        pair_labels=pair_labels(checkpoint, parts.family) if "pair" in heads.present else (),
        labels=heads.classifier.names,
        label_scores=heads.classifier.scores,
        relevance_scores=relevance_scores(checkpoint) if "labels" in heads.present else "none",
        special_tokens=tokenizer.special_tokens,
        inputs=built.graph.inputs(),
        outputs=built.graph.outputs(),
        assumed=checkpoint.assumed | heads.assumed | tokenizer.assumed,
        verification=errors,
        golden=_golden(expected, TOLERANCE[precision]),
        files={name: sha256(folder / name) for name in files_of(folder)},
    )


def _embedding(model: SentenceModel) -> Embedding:
    """The facts of `model` that a manifest has too; modes only if the output `sentence` reads them."""
    facts = {one.name: getattr(model, one.name) for one in fields(Embedding)}
    return Embedding(**facts | {"modes": model.modes if model.pooling == "sentence" else ()})


def _golden(expected: Expected, tolerance: float) -> tuple[Golden, ...]:
    """The random sequences with their reference vectors; the canary, of about CANARY_LENGTH, comes first."""
    both = zip(expected.sequences, expected.outputs["cls"], strict=True)
    return tuple(
        Golden(ids=tuple(ids.tolist()), cls=tuple(np.round(cls, 6).tolist()), tolerance=tolerance)
        for ids, cls in sorted(both, key=lambda one: abs(len(one[0]) - CANARY_LENGTH))
    )


def export(
    source: Path,
    artifact: Path,
    *,
    precision: str = "fp32",
    device: str = "cpu",
    name: str = "",
    version: str = "",
    prepacked: bool = False,
    without_modules: bool = False,
    base: Path | None = None,
    head: str = "",
) -> Manifest:
    """Writes the checkpoint folder `source` to the folder `artifact`/`device`.

    `precision` may be "auto": the first of AUTO_ORDER that is fast here, which is measured for bf16, and whose check
    stays within AUTO_MIN_COSINE, otherwise fp32. `name` is the checkpoint's, if it is not the folder's, and `version`
    the model's; `prepacked` stores the weights also packed for this machine; `without_modules` leaves out
    sentence-transformers' modules that are not computed. `base` is an adapter's base, by default that of its config,
    and `head` is what a classifier classifies, "labels" or "tags", if config.json does not say it.
    Raises ExportError, and then leaves nothing behind, if the checkpoint or the combination is not supported, the
    folder cannot be written, or the written artifact does not compute the checkpoint's vectors.
    """
    checkpoint = partial(Checkpoint, source, name, version=version, base=base, head=head)
    write = partial(_export, checkpoint, artifact, device=device, prepacked=prepacked, without_modules=without_modules)
    if precision != AUTO:
        return write(precision)
    refused = []
    for candidate in AUTO_ORDER[device]:
        if fault := _why_slow(candidate):
            refused.append(fault)
            continue
        try:
            return write(candidate, auto="")
        except PrecisionError as error:
            refused.append(str(error))
    return write("fp32", auto=f"fp32, because {'; '.join(refused)}")


def _why_slow(precision: str) -> str:
    """Why `precision` is not faster than fp32 on this machine, or cannot run; empty if it is."""
    if precision == BF16:
        return why_bf16_unavailable()
    slow = precision == "int8" and not has_fast_int8()
    return "this processor has no AVX2, which int8 needs to be fast" if slow else ""


def _export(
    open_checkpoint: Callable[[], Checkpoint],
    artifact: Path,
    precision: str,
    *,
    device: str,
    prepacked: bool,
    without_modules: bool,
    auto: str | None = None,
) -> Manifest:
    """`export` in this precision. `auto` says why `auto` takes this precision; "": if it is exact and fast enough."""
    _check_supported(precision, device, prepacked=prepacked)
    check_empty(artifact, device)
    checkpoint = open_checkpoint()
    built = build_graph(checkpoint, precision, device, without_modules=without_modules)
    sizes, family = built.parts.architecture, built.parts.family
    tokenizer = read_tokenizer(
        checkpoint.tokenizer_folder, checkpoint.files, family, size=sizes.vocabulary, positions=sizes.positions
    )
    check_tokenizer_fits(built, tokenizer)
    heads = built.heads
    expected = reference_outputs(
        built.reference, heads.present, heads.sentence, layout=built.layout, max_tokens=tokenizer.max_tokens
    )
    with atomic_folder(artifact / device) as folder:
        tokenizer.tokenizer.save(str(folder / TOKENIZER), pretty=False)
        _write_graphs(folder, built, prepacked=prepacked)
        trim_heap()
        words = one_word_texts(sizes.vocabulary, tokenizer.tokenizer.encode("").ids) if precision != "fp32" else ()
        errors = verify(folder, expected, precision, words)
        if auto is not None:
            checkpoint.assumed["precision"] = auto or _check_exact(precision, errors)
        if auto == "" and precision == BF16:
            checkpoint.assumed["precision"] += _check_fast(measure_speeds(folder, expected))
        manifest = make_manifest(
            checkpoint, built, tokenizer, expected, errors, folder, precision=precision, device=device
        )
        manifest.write(folder)
    return manifest


def _write_graphs(folder: Path, built: BuiltModel, *, prepacked: bool) -> None:
    """Writes MODEL with its weights, then the graphs that share them."""
    built.graph.save(folder / MODEL, {PREPACKED_FOR: cpu_signature(ort.__version__)} if prepacked else {})
    if prepacked:
        _replace_by_prepacked(folder / MODEL)
    write_layers(folder / LAYERS, folder / MODEL, built.offsets.load(), built.graph.dtype)
    if built.cut_heads is not None:
        built.cut_heads.save_sharing(folder / HEADS, folder / MODEL)
    built.attention.save_sharing(folder / ATTENTION, folder / MODEL)


def _check_exact(precision: str, errors: Mapping[str, float]) -> str:
    """Why `auto` takes the precision. Raises PrecisionError if it is not exact enough for that."""
    smallest = min(value for name, value in errors.items() if name.endswith("_smallest_cosine"))
    bound, found = AUTO_MIN_COSINE[precision], f"the smallest cosine of the {precision} check is {smallest:.5f}"
    if not smallest >= bound:
        raise PrecisionError(f"{found}, below {bound}")
    return f"{precision}, because {found}, at least {bound}"


def _check_fast(speeds: Mapping[str, float]) -> str:
    """What was measured. Raises PrecisionError if bf16 is not faster here: no flag of a processor says that."""
    found = f"{speeds[BF16]:,.0f} tokens a second here in bf16, and {speeds['fp32']:,.0f} in fp32"
    if speeds[BF16] <= speeds["fp32"]:
        raise PrecisionError(f"the export measured {found}")
    return f", and the export measured {found}"


def _replace_by_prepacked(model: Path) -> None:
    """Raises ExportError on a full disk."""
    folder = model.with_name("prepacked")
    try:
        prepack(model, folder)
    except OSError as error:
        reason = "packing weights needs three times their size on the disk; make room, or omit --prepacked"
        raise ExportError(f"{folder} could not be written: {reason}") from error
    for name in (WEIGHTS, model.name):
        (folder / name).replace(model.with_name(name))
    folder.rmdir()


def _check_supported(precision: str, device: str, *, prepacked: bool) -> None:
    if precision not in PRECISIONS or device not in PRECISIONS[precision].linear:
        known = "; ".join(f"{name} on {' and '.join(one.linear)}" for name, one in PRECISIONS.items())
        raise ExportError(f"precision {precision} is not supported on {device}; choose one of: {known}")
    if prepacked and device != "cpu":
        raise ExportError("prepacked weights are for the CPU: omit --prepacked, or choose --device cpu")
    if prepacked and precision == BF16:
        raise ExportError("prepacked weights are for ONNX Runtime, and OpenVINO runs bf16: omit --prepacked")
    if precision == BF16 and (fault := why_bf16_unavailable()):
        raise ExportError(f"precision bf16 cannot be verified on this machine: {fault}")
