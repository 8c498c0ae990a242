"""Changes of an artifact: of its files while a service runs that opens some of them later, and of its manifest."""

import dataclasses
import shutil
from pathlib import Path

from packbert.model_export.artifact.manifest import Manifest, sha256

CHANGES = ("weights", "graph", "removed", "short")


def change_file(change: str, *, weights: Path, graph: Path) -> None:
    """One of CHANGES: other weights, another graph, no graph, or no weights in their file."""
    if change == "weights":
        weights.write_bytes(bytes(weights.stat().st_size))
    elif change == "graph":
        graph.write_bytes(graph.read_bytes() + b" ")
    elif change == "removed":
        graph.unlink()
    else:
        weights.write_bytes(b"")


def with_reversed_golden(manifest: Manifest) -> Manifest:
    """The manifest with another vector of its second known sequence."""
    first, second, *others = manifest.golden
    wrong = dataclasses.replace(second, cls=second.cls[::-1])
    return dataclasses.replace(manifest, golden=(first, wrong, *others))


def with_own_digests(folder: Path) -> None:
    """Lets the manifest in `folder` describe the files that are there now."""
    manifest = Manifest.read(folder)
    dataclasses.replace(manifest, files={name: sha256(folder / name) for name in manifest.files}).write(folder)


def variants(artifact: Path, folder: Path) -> tuple[list[Path], Path]:
    """Two copies in `folder` with other digests, and one whose self-test fails."""
    manifest = Manifest.read(artifact / "cpu")
    copies = {name: dataclasses.replace(manifest, exporter=name) for name in ("one", "other")}
    for name, changed in {**copies, "wrong": with_reversed_golden(manifest)}.items():
        shutil.copytree(artifact, folder / name)
        changed.write(folder / name / "cpu")
    return [folder / name for name in copies], folder / "wrong"
