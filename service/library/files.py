"""Files of texts and answers, and their division into requests."""

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Input = str | tuple[str, str]  # a text, or a pair of texts
SPECIAL_TOKENS = 2
CHARACTERS_PER_TOKEN = 4  # of text in an alphabet; a character above U+2E7F (Chinese, Japanese, Korean) is a token
FIRST_IDEOGRAPH = "\u2e80"
MAX_BYTES_PER_CHARACTER = 6  # in JSON: an escaped control character; most take 1 to 3
ROWS = (".parquet", ".csv")  # files whose rows are no lines; the first row of a CSV file comes after its header
JSON_LINES = (".jsonl", ".ndjson")
NOT_READ = (".tsv", ".json")
COLUMN = "text"  # if none is named
MAX_CSV_FIELD = 2**31 - 1  # characters; csv's own limit is 131,072
PARQUET_ROWS = 4096  # read at a time
OUTPUT = "output"  # the column of the answers
WritePart = Callable[[Path, Sequence[Any]], None]
JoinParts = Callable[[Sequence[Path], Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """The limits of one request."""

    tokens: int = 8192  # estimated; a few batches of the model
    inputs: int = 256
    characters: int = 8 * 2**20 // MAX_BYTES_PER_CHARACTER


def estimate_tokens(item: Input) -> int:
    text = item if isinstance(item, str) else "".join(item)
    ideographs = 0 if text.isascii() else sum(character >= FIRST_IDEOGRAPH for character in text)
    return SPECIAL_TOKENS + ideographs + (len(text) - ideographs) // CHARACTERS_PER_TOKEN


def split_into_chunks(items: Iterable[Input], limits: ChunkLimits) -> Iterator[list[Input]]:
    """Consecutive items; a chunk has one item at least, however large that is."""
    chunk: list[Input] = []
    tokens = characters = 0
    for item in items:
        size, length = estimate_tokens(item), len(item) if isinstance(item, str) else sum(map(len, item))
        full = len(chunk) >= limits.inputs or tokens + size > limits.tokens or characters + length > limits.characters
        if chunk and full:
            yield chunk
            chunk, tokens, characters = [], 0, 0
        chunk.append(item)
        tokens, characters = tokens + size, characters + length
    if chunk:
        yield chunk


def read_limits(info: dict[str, Any]) -> ChunkLimits:
    """The limits of a request, from /info."""
    limits, defaults = info.get("limits", {}), ChunkLimits()
    return ChunkLimits(
        tokens=min(defaults.tokens, limits.get("waiting_tokens", defaults.tokens) // 4),
        inputs=min(defaults.inputs, limits.get("inputs", defaults.inputs)),
        characters=min(defaults.characters, limits.get("body_bytes", 8 * defaults.characters) // 8),
    )


class FileError(Exception):
    """A file cannot be read, or a row of it is no input."""


def row_name(path: Path, index: int) -> str:
    """The row with this index as a person counts, from 1: "line 3", or "row 3" if rows are no lines."""
    return f"{'row' if path.suffix.lower() in ROWS else 'line'} {index + 1}"


def check_source(path: Path, column: str, pair_column: str) -> None:
    """Raises FileError for a file that `read_inputs` does not read, or not by columns; OSError without a file."""
    path.stat()
    suffix = path.suffix.lower()
    if suffix in NOT_READ:
        raise FileError(f"{path}: {suffix} is not read: write it as .jsonl, .csv with a header, or .parquet")
    if (column or pair_column) and suffix not in (*ROWS, *JSON_LINES):
        wrong = f"--{'column' if column else 'pair-column'}: {path} has one text a line"
        raise FileError(f"{wrong}; columns are read from .csv, .jsonl and .parquet")


def read_inputs(path: Path, column: str, pair_column: str, *, nulls: bool) -> Iterator[Input | None]:
    """The inputs of a file by its suffix: .parquet, .jsonl, .csv with a header, or else one text a line.

    `column` may be empty for COLUMN, `pair_column` for single texts. With `nulls` a row that has null for a text is
    None. Raises FileError with the row.
    """
    names = [name for name in (column or COLUMN, pair_column) if name]
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        rows: Iterator[Any] = _read_parquet(path, names)
    elif suffix in JSON_LINES:
        rows = _read_jsonl(path)
    elif suffix == ".csv":
        rows = _read_csv(path)
    else:
        rows = _read_lines(path)
    for number, row in enumerate(rows):
        texts: list[Any] = [row.get(name, ...) for name in names] if isinstance(row, dict) else [row]
        if nulls and None in texts:
            yield None
            continue
        if len(texts) < len(names) or not all(isinstance(text, str) for text in texts):
            wanted = " and ".join(map(repr, names))
            raise FileError(f"{path}: {row_name(path, number)} has no text under {wanted} (--column, --pair-column)")
        yield texts[0] if len(texts) == 1 else (texts[0], texts[1])


def _read_lines(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            try:
                text = line.decode("utf-8" if number else "utf-8-sig")
            except UnicodeDecodeError as error:
                raise FileError(f"{path}: {row_name(path, number)} is not UTF-8: {error}: convert the file") from None
            yield text.removesuffix("\n").removesuffix("\r")


def _read_csv(path: Path) -> Iterator[Any]:
    """A dictionary for each row, by the names in the first row."""
    csv.field_size_limit(MAX_CSV_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            yield from reader
        except csv.Error as error:
            raise FileError(f"{path} is no CSV after line {reader.line_num}: {error}") from None
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not UTF-8: {error}: convert the file") from None


def _read_jsonl(path: Path) -> Iterator[Any]:
    """Objects, or strings."""
    for number, line in enumerate(_read_lines(path)):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise FileError(f"{path}: {row_name(path, number)} is not JSON: {error}") from None


def _read_parquet(path: Path, columns: list[str]) -> Iterator[Any]:
    from pyarrow import ArrowInvalid, parquet  # takes a third of a second; only Parquet needs it

    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise FileError(f"{path} is no Parquet file: {error}") from None
    if missing := [name for name in columns if name not in file.schema_arrow.names]:
        raise FileError(f"{path} has no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")
    for batch in file.iter_batches(PARQUET_ROWS, columns=columns):
        yield from batch.to_pylist()


# A part holds the answers to consecutive rows of the input; None stands for an input that the server refused.


def check_vectors(answers: Sequence[Any]) -> None:
    """Raises FileError if an answer is an array of another form, such as the vectors of a text's tokens."""
    if any(np.ndim(one) != 1 for one in answers if one is not None):
        raise FileError("an answer has several vectors, which only .jsonl holds: name such an output")


def write_npy_part(path: Path, answers: Sequence[Any]) -> None:
    check_vectors(answers)
    width = next((len(one) for one in answers if one is not None), 0)
    rows = np.full((len(answers), width), np.nan, np.float32)
    for number, one in enumerate(answers):
        if one is not None:
            rows[number] = one
    with path.open("wb") as file:
        np.save(file, rows)


def join_npy(parts: Sequence[Path], output: Path) -> None:
    """One array of all rows, without holding it in memory. Rows of parts that have no answer at all are NaN."""
    arrays = [np.load(part, mmap_mode="r") for part in parts]
    width = max((one.shape[1] for one in arrays), default=0)
    rows = sum(one.shape[0] for one in arrays)
    if not rows:
        write_npy_part(output, [])
        return
    joined = np.lib.format.open_memmap(output, "w+", np.dtype(np.float32), (rows, width))
    start = 0
    for one in arrays:
        joined[start : start + len(one)] = one if one.shape[1] else np.nan
        start += len(one)
    joined.flush()


def write_jsonl_part(path: Path, answers: Sequence[Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for one in answers:
            plain = one.tolist() if isinstance(one, np.ndarray) else one
            file.write(json.dumps(plain, ensure_ascii=False) + "\n")


def join_jsonl(parts: Sequence[Path], output: Path) -> None:
    with output.open("wb") as joined:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined)


def write_parquet_part(path: Path, answers: Sequence[Any]) -> None:
    """One column `output`: lists of float32 for vectors, else the answers as JSON text; null for none."""
    import pyarrow
    from pyarrow import parquet

    if any(isinstance(one, np.ndarray) for one in answers):
        check_vectors(answers)
        column = pyarrow.array(answers, pyarrow.list_(pyarrow.float32()))
    else:
        texts = [None if one is None else json.dumps(one, ensure_ascii=False) for one in answers]
        column = pyarrow.array(texts, pyarrow.string())
    parquet.write_table(pyarrow.table({OUTPUT: column}), path)


def join_parquet(parts: Sequence[Path], output: Path) -> None:
    """Parts without any answer take the type of the others."""
    import pyarrow
    from pyarrow import parquet

    schemas = [parquet.read_schema(part) for part in parts]
    lists = [one for one in schemas if pyarrow.types.is_list(one.field(0).type)]
    schema = (lists or schemas or [pyarrow.schema([(OUTPUT, pyarrow.string())])])[0]
    with parquet.ParquetWriter(output, schema) as writer:
        for part, own in zip(parts, schemas, strict=True):
            table = parquet.read_table(part)
            empty = pyarrow.table({OUTPUT: pyarrow.nulls(table.num_rows, schema.field(0).type)})
            writer.write_table(table if own.equals(schema) else empty)


FORMATS: dict[str, tuple[WritePart, JoinParts]] = {
    ".npy": (write_npy_part, join_npy),
    ".jsonl": (write_jsonl_part, join_jsonl),
    ".parquet": (write_parquet_part, join_parquet),
}
