"""The sizes of a graph's tables, stored in model.onnx itself: they show whether a manifest was changed."""

import json
from collections.abc import Mapping
from pathlib import Path

KEY = "bert_service_sizes"  # in the model's metadata, whose values protobuf stores as they are
BEGIN = b'{"format": "bert-service sizes 2", '
SIZES = ("vocabulary", "hidden", "layers", "heads", "intermediate", "segments", "parameters", "positions")


def metadata_of(sizes: Mapping[str, object]) -> dict[str, str]:
    """The metadata for a graph of these sizes, which must include SIZES."""
    return {KEY: BEGIN.decode() + json.dumps({name: sizes[name] for name in SIZES})[1:]}


def why_sizes_differ(model: Path, sizes: Mapping[str, int], max_tokens: int) -> str:
    """How a manifest's sizes and length limit contradict those in model.onnx; empty if they agree or it has none."""
    content = model.read_bytes()
    start = content.find(BEGIN)
    if start < 0:
        return ""
    stored = json.loads(content[start : content.index(b"}", start) + 1])
    for name in SIZES[:-1]:
        if sizes.get(name) != stored[name]:
            return f"gives {name} as {sizes.get(name)} in sizes, but {model.name} has {stored[name]}"
    if max_tokens > stored["positions"]:
        return f"gives max_tokens as {max_tokens}, but {model.name} has {stored['positions']} positions"
    return ""
