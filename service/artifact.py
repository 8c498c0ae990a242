"""Opens an artifact folder: reads the manifest, checks that it is complete, and the checksums of its files."""

import math
from dataclasses import dataclass
from pathlib import Path

from packbert.model_export.artifact.manifest import (
    ATTENTION,
    LAYERS,
    MANIFEST,
    MODEL,
    PACKED_ROWS,
    PLAIN,
    PLAIN_LAYERS,
    PREPACKED_FOR,
    TOKENIZER,
    WEIGHTS,
    Manifest,
    ManifestError,
    files_for,
    why_sizes_differ,
)

__all__ = ["PREPACKED_FOR", "Artifact", "Manifest", "ManifestError", "available", "open_artifact", "read_artifact"]

SIZES = {"vocabulary": 1, "hidden": 1, "layers": 1, "heads": 1, "intermediate": 1, "segments": 0, "parameters": 1}
CHECKPOINT = ("config.json", "bert_config.json", "*.safetensors", "pytorch_model*.bin")  # files of a checkpoint
SOLUTION = "export the checkpoint again"


@dataclass(frozen=True, slots=True)
class Artifact:
    folder: Path
    manifest: Manifest
    plain: bool = False  # for CUDA: whether PLAIN runs, and not MODEL

    @property
    def model(self) -> Path:
        return self.folder / (PLAIN if self.plain else MODEL)

    @property
    def layout(self) -> str:
        """Of the batches that `model` reads."""
        return PACKED_ROWS if self.plain else self.manifest.layout

    @property
    def attention(self) -> Path:
        return self.folder / ATTENTION

    @property
    def layers(self) -> Path:
        return self.folder / (PLAIN_LAYERS if self.plain else LAYERS)

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS

    @property
    def weights_bytes(self) -> int:
        """Size of the weights in fp32; their file may also hold packed copies."""
        return 4 * self.manifest.sizes["parameters"]

    @property
    def tokenizer(self) -> Path:
        return self.folder / TOKENIZER

    @property
    def digest(self) -> str:
        """Shortened SHA-256 of the model and its weights: changes whenever an answer could change."""
        return ".".join(self.manifest.files[name][:12] for name in sorted(self.manifest.files))


def available(folder: Path) -> list[str]:
    """The devices that `folder` holds an artifact for."""
    return [device for device in ("cpu", "cuda") if (folder / device / MANIFEST).is_file()]


def open_artifact(folder: Path, device: str = "cpu") -> Artifact:
    """Raises ManifestError where the folder has no artifact for `device`, a damaged one, or another version."""
    devices = available(folder)
    if device not in devices:
        _refuse_checkpoint(folder, device)
        found = f", only one for {devices[0]}" if devices else ""
        remedy = f"make one with `packbert export CHECKPOINT {folder} --device {device}`"
        raise ManifestError(f"{folder} holds no artifact for {device}{found}: {remedy}")
    manifest = Manifest.read(folder / device)
    fault = why_inconsistent(manifest)
    if not fault:
        manifest.check_files(folder / device)
        fault = why_sizes_differ(folder / device / MODEL, manifest.sizes, manifest.max_tokens)
    if fault:
        raise ManifestError(f"{folder / device / MANIFEST} {fault}: it was changed or made elsewhere; {SOLUTION}")
    return Artifact(folder / device, manifest)


def read_artifact(folder: Path, device: str, *, plain: bool = False) -> Artifact:
    """As `open_artifact`, for a worker whose supervisor checked the files. Raises ManifestError without a manifest."""
    return Artifact(folder / device, Manifest.read(folder / device), plain)


def why_inconsistent(manifest: Manifest) -> str:
    """What in the manifest contradicts itself or is missing, as a sentence without subject; empty if nothing is."""
    if set(manifest.files) != set(expected := files_for(manifest.device, manifest.precision)):
        return f"lists the checksums of {sorted(manifest.files)}, not of {', '.join(expected)}"
    if wrong := [name for name, least in SIZES.items() if manifest.sizes.get(name, -1) < least]:
        return f"gives {wrong[0]} as {manifest.sizes.get(wrong[0])} in sizes; at least {SIZES[wrong[0]]} is possible"
    vocabulary, hidden = manifest.sizes["vocabulary"], manifest.sizes["hidden"]
    output = manifest.outputs.get("cls")
    if output is None or not output.shape or output.shape[-1] != hidden:
        width = output.shape[-1] if output and output.shape else "no"
        return f"gives hidden as {hidden} in sizes, but the output cls has {width} channels"
    for name, token_id in manifest.special_tokens.items():
        if not 0 <= token_id < vocabulary:
            return f"gives the {name} token the id {token_id}, but the vocabulary has {vocabulary} entries"
    return _why_golden_unusable(manifest, vocabulary, hidden)


def _why_golden_unusable(manifest: Manifest, vocabulary: int, hidden: int) -> str:
    """As `why_inconsistent`, about the known sequences and vectors of the self-test and the canary."""
    if not manifest.golden:
        return "has no golden sequences, which the self-test needs"
    for one in manifest.golden:
        if not 1 <= len(one.ids) <= manifest.max_tokens:
            return f"has a golden sequence of {len(one.ids)} tokens, but max_tokens is {manifest.max_tokens}"
        if not all(0 <= token_id < vocabulary for token_id in one.ids):
            return f"has a golden sequence with the id {max(one.ids)}, but the vocabulary has {vocabulary} entries"
        if len(one.cls) != hidden:
            return f"has a golden vector of {len(one.cls)} channels, but hidden is {hidden}"
        if not 0 < one.tolerance < math.inf:
            return f"has {one.tolerance} as the tolerance of a golden vector"
    return ""


def _refuse_checkpoint(folder: Path, device: str) -> None:
    """Raises ManifestError for a checkpoint, into whose folder nothing should be exported."""
    if not available(folder) and any(any(folder.glob(pattern)) for pattern in CHECKPOINT):
        solution = f"export it into another folder, `packbert export {folder} ARTIFACT --device {device}`"
        raise ManifestError(f"{folder} is a checkpoint, not an artifact: {solution}, and set BERT_ARTIFACT to that")
