"""Exports a checkpoint: read it, build the graph, write it, verify the written files, then rename the folder."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from model_export.artifact.cpu import BF16, has_fast_int8, int8_saturates, trim_heap, why_bf16_unavailable
from model_export.artifact.graph_sizes import metadata_of
from model_export.artifact.manifest import (
    ATTENTION,
    HEADS,
    LAYERS,
    MODEL,
    PLAIN,
    PLAIN_LAYERS,
    PREPACKED_FOR,
    TOKENIZER,
    Manifest,
    StoredWeight,
)
from model_export.build import BuiltModel, build_graph, check_tokenizer_fits
from model_export.checkpoints.checkpoint import Checkpoint
from model_export.errors import ExportError, PrecisionError
from model_export.graph.heads.layers import write_layers
from model_export.graph.precision import PRECISIONS
from model_export.make_manifest import make_manifest
from model_export.output.atomic_folder import atomic_folder, check_empty
from model_export.output.prepacked import prepack, prepacked_for
from model_export.tokenization.sentence_settings import apply_sentence_settings
from model_export.tokenization.tokenizer_files import read_tokenizer
from model_export.verification.verify import reference_outputs, verify, verify_plain

AUTO = "auto"
AUTO_MIN_COSINE = {"int8": 0.99, "bf16": 0.9998, "fp16": 0.9999}  # of the check's vectors; below it auto goes on
AUTO_ORDER = {"cpu": ("int8", "bf16"), "cuda": ("fp16",)}  # the fastest first; the last resort is fp32


def export(
    source: Path,
    artifact: Path,
    *,
    precision: str = "fp32",
    device: str = "cpu",
    name: str = "",
    prepacked: bool = False,
    without_modules: bool = False,
) -> Manifest:
    """Writes the checkpoint folder `source` to the folder `artifact`/`device`.

    `precision` may be "auto": the first of AUTO_ORDER that is fast here and whose check stays within AUTO_MIN_COSINE,
    otherwise fp32. `name` is the checkpoint's, if it is not the folder's; `prepacked` stores the
    weights also packed for this machine; `without_modules` leaves out sentence-transformers' modules that are not
    computed.
    Raises ExportError, and then leaves nothing behind, where the checkpoint or the combination is not supported, the
    folder cannot be written, or the written artifact does not compute the checkpoint's vectors.
    """
    write = partial(
        _export, source, artifact, device=device, name=name, prepacked=prepacked, without_modules=without_modules
    )
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
    """Why `precision` is not faster than fp32 on this machine, or cannot run; empty where it is."""
    if precision == BF16:
        return why_bf16_unavailable()
    slow = precision == "int8" and not has_fast_int8()
    return "this processor has neither VNNI nor AMX, which int8 needs" if slow else ""


def _export(
    source: Path,
    artifact: Path,
    precision: str,
    *,
    device: str,
    name: str,
    prepacked: bool,
    without_modules: bool,
    auto: str | None = None,
) -> Manifest:
    """As `export`. `auto` says why `auto` takes this precision; "": if its check is within AUTO_MIN_COSINE."""
    _check_supported(precision, device, prepacked=prepacked)
    check_empty(artifact, device)
    checkpoint = Checkpoint(source, name)
    built = build_graph(checkpoint, precision, device, without_modules=without_modules)
    sizes, family = built.parts.architecture, built.parts.family
    tokenizer = read_tokenizer(
        checkpoint.folder, checkpoint.config, family, size=sizes.vocabulary, positions=sizes.positions
    )
    apply_sentence_settings(tokenizer, built.sentence, positions=sizes.positions)
    check_tokenizer_fits(built, tokenizer)
    heads, labels = built.heads.present, len(built.classifier.names)
    expected = reference_outputs(built.reference, heads, built.sentence, max_tokens=tokenizer.max_tokens, labels=labels)
    with atomic_folder(artifact / device) as folder:
        tokenizer.save(folder / TOKENIZER)
        stored = asdict(sizes) | {"parameters": checkpoint.parameters}
        shared = _write_graphs(folder, built, stored, PRECISIONS[precision].dtype, prepacked=prepacked)
        trim_heap()
        errors = verify(folder, expected, heads, precision, built.layout)
        if built.plain is not None:
            errors |= verify_plain(folder, expected, heads, precision)
        if auto is not None:
            checkpoint.assumed["precision"] = auto or _check_exact(precision, errors)
        manifest = make_manifest(
            checkpoint, built, tokenizer, expected, errors, folder, shared, precision=precision, device=device
        )
        manifest.write(folder)
    return manifest


def _write_graphs(
    folder: Path, built: BuiltModel, sizes: Mapping[str, int], dtype: str, *, prepacked: bool
) -> Sequence[StoredWeight]:
    """Writes MODEL with its weights, then the graphs that share them; returns the weights that ATTENTION reads."""
    packed_for = {PREPACKED_FOR: prepacked_for()} if prepacked else {}
    built.graph.save(folder / MODEL, metadata_of(sizes) | packed_for)
    if prepacked:
        prepack(folder / MODEL)
    offsets = built.offsets.load()
    write_layers(folder / LAYERS, folder / MODEL, offsets, dtype)
    if built.cut_heads is not None:
        built.cut_heads.save_sharing(folder / HEADS, folder / MODEL)
    if built.plain is not None:
        built.plain.save_sharing(folder / PLAIN, folder / MODEL)
        write_layers(folder / PLAIN_LAYERS, folder / PLAIN, offsets, dtype)
    return built.attention.save_sharing(folder / ATTENTION, folder / MODEL)


def _check_exact(precision: str, errors: Mapping[str, float]) -> str:
    """Why `auto` takes the precision. Raises PrecisionError where it is not exact enough for that."""
    smallest = min(value for name, value in errors.items() if name.endswith("_smallest_cosine"))
    bound, found = AUTO_MIN_COSINE[precision], f"the smallest cosine of the {precision} check is {smallest:.5f}"
    if not smallest >= bound:
        raise PrecisionError(f"{found}, below {bound}")
    return f"{precision}, because {found}, at least {bound}"


def _check_supported(precision: str, device: str, *, prepacked: bool) -> None:
    if precision not in PRECISIONS or device not in PRECISIONS[precision].devices:
        known = "; ".join(f"{name} on {' and '.join(one.devices)}" for name, one in PRECISIONS.items())
        raise ExportError(f"precision {precision} is not supported on {device}; choose one of: {known}")
    if prepacked and device != "cpu":
        raise ExportError("prepacked weights are for the CPU: omit --prepacked, or choose --device cpu")
    if prepacked and precision == BF16:
        raise ExportError("prepacked weights are for ONNX Runtime, and OpenVINO runs bf16: omit --prepacked")
    if prepacked and precision == "int8" and int8_saturates():
        raise ExportError(
            "prepacked int8 weights are for processors with VNNI or AMX; on this one each session stores them in "
            "another form, which is exact: omit --prepacked"
        )
    if precision == BF16 and (fault := why_bf16_unavailable()):
        raise ExportError(f"precision bf16 cannot be verified on this machine: {fault}")
