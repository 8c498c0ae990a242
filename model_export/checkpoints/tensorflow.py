"""TensorFlow's checkpoint files, read without TensorFlow: PREFIX.index, a sorted table of entries, and PREFIX.data-*, the raw arrays.

The table is LevelDB's format: blocks of prefix-compressed keys, an index block, a footer of 48 bytes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from model_export.checkpoints.lazy_weight import Array, LazyWeight
from model_export.errors import ExportError
from model_export.protobuf import DamagedError, message_classes, parsed

FOOTER, MAGIC = 48, 0xDB4775248B80FB57
PLAIN = 0  # a block's compression
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "bfloat16", 19: "<f2"}
MESSAGES = message_classes(
    "bundle",
    {
        "Size": [("size", 1, "int64")],
        "Shape": [("dim", 2, "[Size]")],
        "Entry": [
            ("dtype", 1, "int32"),
            ("shape", 2, "Shape"),
            ("shard_id", 3, "int32"),
            ("offset", 4, "int64"),
            ("size", 5, "int64"),
        ],
        "Header": [("num_shards", 1, "int32"), ("endianness", 2, "int32")],
    },
    {},
)


def bundle_weights(index: Path) -> dict[str, LazyWeight]:
    """The arrays of the checkpoint whose index file is `index`, by TensorFlow's names. Raises ExportError where a file is damaged."""
    try:
        entries = dict(_table(index.read_bytes()))
        header = parsed(MESSAGES["Header"], entries.pop(b""))
        found = {name.decode(): parsed(MESSAGES["Entry"], content) for name, content in entries.items()}
    except (DamagedError, KeyError, IndexError, ValueError) as error:
        raise ExportError(f"{index} is truncated or damaged: {error}") from error
    if header.endianness:
        raise ExportError(f"{index} was written on a big-endian machine, which this exporter does not read")
    return {
        name: _weight(index, entry, max(1, header.num_shards)) for name, entry in found.items() if entry.dtype in DTYPES
    }


def _weight(index: Path, entry: Any, shards: int) -> LazyWeight:
    shape, dtype = tuple(one.size for one in entry.shape.dim), np.dtype(DTYPES[entry.dtype])
    data = index.with_suffix(f".data-{entry.shard_id:05d}-of-{shards:05d}")
    if not data.is_file():
        raise ExportError(f"{data} is missing: {index.name} names it")
    if entry.offset + entry.size > data.stat().st_size:
        raise ExportError(f"{data} is truncated: it has {data.stat().st_size} bytes, and {index.name} points past them")
    if entry.size != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ExportError(f"{index} is damaged: an entry of shape {list(shape)} says it has {entry.size} bytes")

    def load() -> Array:
        count = entry.size // dtype.itemsize
        return np.fromfile(data, dtype, count, offset=entry.offset).reshape(shape).astype(np.float32, copy=False)

    return LazyWeight(shape, load)


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key and value. Raises ValueError or IndexError where the bytes are not such a table."""
    if len(content) < FOOTER or int.from_bytes(content[-8:], "little") != MAGIC:
        raise ValueError("it has no table footer")
    footer = content[-FOOTER:]
    _, at = _numbers(footer, 0, 2)  # the block of metadata, which is empty
    (offset, size), _ = _numbers(footer, at, 2)
    for _, handle in _entries(_block(content, offset, size)):
        (offset, size), _ = _numbers(handle, 0, 2)
        yield from _entries(_block(content, offset, size))


def _block(content: bytes, offset: int, size: int) -> bytes:
    if content[offset + size] != PLAIN:
        raise ValueError("a block is compressed, which TensorFlow does not do")
    return content[offset : offset + size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """A block: entries that share the beginning of their key with the one before, then restart points."""
    restarts = int.from_bytes(block[-4:], "little")
    at, end, key = 0, len(block) - 4 * (restarts + 1), b""
    while at < end:
        (shared, unshared, length), at = _numbers(block, at, 3)
        key = key[:shared] + block[at : at + unshared]
        yield key, block[at + unshared : at + unshared + length]
        at += unshared + length


def _numbers(content: bytes, at: int, count: int) -> tuple[list[int], int]:
    """`count` numbers of seven bits a byte, lowest first, and where they end."""
    numbers = []
    for _ in range(count):
        value = shift = 0
        while True:
            byte, at = content[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        numbers.append(value)
    return numbers, at
