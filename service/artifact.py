"""Opens an artifact folder: the manifest, its version, the checksums of its files. The one bridge to model_export's contract."""

from dataclasses import dataclass
from pathlib import Path

from model_export.manifest import MODEL, TOKENIZER, Manifest, ManifestError

__all__ = ["Artifact", "Manifest", "ManifestError", "open_artifact"]


@dataclass(frozen=True, slots=True)
class Artifact:
    folder: Path
    manifest: Manifest

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def tokenizer(self) -> Path:
        return self.folder / TOKENIZER

    @property
    def digest(self) -> str:
        """SHA-256 of the model and its weights, shortened: changes when an answer could."""
        return ".".join(self.manifest.files[name][:12] for name in sorted(self.manifest.files))


def open_artifact(folder: Path) -> Artifact:
    """Raises ManifestError where the folder is no artifact, is of another version, or is damaged."""
    manifest = Manifest.read(folder)
    manifest.check_files(folder)
    return Artifact(folder, manifest)
