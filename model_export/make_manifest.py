"""Fills in the manifest of an artifact that was written and verified."""

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np

from model_export.artifact.manifest import (
    FORMAT,
    WEIGHTS,
    AttentionWeights,
    Embedding,
    Golden,
    Manifest,
    StoredWeight,
    Tensor,
    files_for,
    sha256,
)
from model_export.artifact.stored_weights import digest, read_weights
from model_export.build import BuiltModel
from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.class_labels import pair_labels
from model_export.checkpoints.sentence_modules import SentenceModel
from model_export.graph.builder import Signature
from model_export.tokenization.tokenizer_files import TokenizerFiles
from model_export.verification.verify import TOLERANCE, Expected

CANARY_LENGTH = 17  # tokens
SIZES = ("vocabulary", "hidden", "layers", "heads", "intermediate", "segments")


def make_manifest(
    checkpoint: Checkpoint,
    built: BuiltModel,
    tokenizer: TokenizerFiles,
    expected: Expected,
    errors: dict[str, float],
    folder: Path,
    shared: Sequence[StoredWeight],
    *,
    precision: str,
    device: str,
) -> Manifest:
    """The manifest of the artifact in `folder`; `expected` and `errors` are the results of its verification.

    `shared` are the weights that ATTENTION reads.
    """
    heads, parts = built.heads, built.parts
    sizes = asdict(parts.architecture)
    return Manifest(
        format=FORMAT,
        exporter=f"bert-service {version('bert-service')}",
        name=checkpoint.name,
        family=parts.architecture.family,
        precision=precision,
        device=device,
        layout=built.layout,
        sizes={name: sizes[name] for name in SIZES} | {"parameters": checkpoint.parameters},
        max_tokens=tokenizer.max_tokens,
        heads=tuple(heads.present),
        embedding=_embedding(built.sentence),
        sparse=built.sentence.sparse if "sparse" in heads.present else "",
        missing=heads.missing,
        pair_labels=pair_labels(checkpoint, parts.family) if "pair" in heads.present else (),
        labels=built.classifier.names,
        label_scores=built.classifier.scores,
        special_tokens=tokenizer.special_tokens,
        inputs=_tensors(built.graph.inputs()),
        outputs=_tensors(built.graph.outputs()),
        assumed=checkpoint.assumed | heads.assumed | tokenizer.assumed,
        attention=_attention(folder / WEIGHTS, shared),
        verification=errors,
        golden=_golden(expected, TOLERANCE[precision]),
        files={name: sha256(folder / name) for name in files_for(device)},
    )


def _embedding(model: SentenceModel) -> Embedding:
    return Embedding(
        pooling=model.pooling,
        normalize=model.normalize,
        dimensions=model.width,
        modules=model.modules,
        left_out=model.left_out,
        modes=model.modes if model.pooling == "sentence" else (),
        include_prompt=model.include_prompt,
        prompts=model.prompts,
        default_prompt=model.default_prompt,
        similarity=model.similarity,
    )


def _attention(weights: Path, shared: Sequence[StoredWeight]) -> AttentionWeights:
    mapped = read_weights(weights, shared, mapped=True)
    return AttentionWeights(stored=tuple(shared), sha256=digest(mapped.values()))


def _tensors(signatures: list[Signature]) -> dict[str, Tensor]:
    return {name: Tensor(dtype=dtype, shape=shape) for name, dtype, shape in signatures}


def _golden(expected: Expected, tolerance: float) -> tuple[Golden, ...]:
    """The random sequences with their reference vectors; the one of about CANARY_LENGTH, the canary, comes first."""
    both = zip(expected.sequences, expected.hidden, strict=True)
    return tuple(
        Golden(ids=tuple(ids.tolist()), cls=tuple(np.round(hidden[0], 6).tolist()), tolerance=tolerance)
        for ids, hidden in sorted(both, key=lambda one: abs(len(one[0]) - CANARY_LENGTH))
    )
