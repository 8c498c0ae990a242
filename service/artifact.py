"""Opens an artifact folder: the manifest, its version, the checksums of its files. The one bridge to model_export's contract."""

from dataclasses import dataclass
from pathlib import Path

from model_export.artifact.manifest import MANIFEST, MODEL, PREPACKED_FOR, TOKENIZER, Manifest, ManifestError

__all__ = ["PREPACKED_FOR", "Artifact", "Manifest", "ManifestError", "available", "open_artifact", "read_artifact"]


@dataclass(frozen=True, slots=True)
class Artifact:
    folder: Path
    manifest: Manifest

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def weights_bytes(self) -> int:
        """Of the weights in fp32, whatever else their file holds."""
        return 4 * self.manifest.sizes["parameters"]

    @property
    def tokenizer(self) -> Path:
        return self.folder / TOKENIZER

    @property
    def digest(self) -> str:
        """SHA-256 of the model and its weights, shortened: changes when an answer could."""
        return ".".join(self.manifest.files[name][:12] for name in sorted(self.manifest.files))


def available(folder: Path) -> list[str]:
    """The devices that `folder` holds an artifact for."""
    return [device for device in ("cpu", "cuda") if (folder / device / MANIFEST).is_file()]


def open_artifact(folder: Path, device: str = "cpu") -> Artifact:
    """Raises ManifestError where the folder has no artifact for the device, or one of another version, or a damaged one."""
    there = available(folder)
    if device not in there:
        found = f", only one for {there[0]}" if there else ""
        way = f"make one with `python -m model_export CHECKPOINT {folder} --device {device}`"
        raise ManifestError(f"{folder} holds no artifact for {device}{found}: {way}")
    manifest = Manifest.read(folder / device)
    manifest.check_files(folder / device)
    return Artifact(folder / device, manifest)


def read_artifact(folder: Path, device: str) -> Artifact:
    """As `open_artifact`, for a process whose supervisor has looked at the files. Raises ManifestError where there is no manifest."""
    return Artifact(folder / device, Manifest.read(folder / device))
