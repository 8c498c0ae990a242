"""Changes of an artifact's files while a service runs that opens some of them later."""

from pathlib import Path

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
