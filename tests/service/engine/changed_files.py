"""Changes of an artifact: of its files while a service runs that opens some of them later, and of its manifest."""

import dataclasses
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
