"""Opens an artifact folder: reads the manifest, and checks the checksums of its small files."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from packbert.model_export.artifact.manifest import TOKENIZER, WEIGHTS, Manifest, ManifestError, available

__all__ = ["Artifact", "Manifest", "ManifestError", "available", "open_artifact", "read_artifact"]


@dataclass(frozen=True, slots=True)
class Artifact:
    folder: Path
    manifest: Manifest
    digest: str  # of the manifest as exported, whatever name it is served as
    degraded: str = field(default="", compare=False)  # why the CPU runs it although its folder has an artifact for CUDA

    def served_as(self, name: str | None) -> "Artifact":
        """The artifact with the name that clients see; None: the checkpoint's."""
        return self if name is None else replace(self, manifest=replace(self.manifest, name=name))

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


def open_artifact(folder: Path, device: str = "cpu") -> Artifact:
    """Raises ManifestError if the folder has no artifact for `device`, a damaged artifact, or another version.

    `engine/memory` checks the weights as it copies them.
    """
    devices = available(folder)
    if device not in devices:
        found = f", only one for {devices[0]}" if devices else ""
        remedy = f"make one with `packbert export CHECKPOINT {folder} --device {device}`"
        raise ManifestError(f"{folder} holds no artifact for {device}{found}: {remedy}")
    artifact = read_artifact(folder, device)
    artifact.manifest.check_files(artifact.folder, unread=(WEIGHTS,))
    return artifact


def read_artifact(folder: Path, device: str) -> Artifact:
    """An artifact whose files have been checked before. Raises ManifestError without a manifest."""
    manifest = Manifest.read(folder / device)
    return Artifact(folder / device, manifest, manifest.digest)
