"""A job that answers a file in parts, in order, and continues after a stop."""

import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ..errors import NotFound, ServiceError, TokenizerFailed
from .files import (
    COLUMN,
    FORMATS,
    ChunkLimits,
    FileError,
    Input,
    check_source,
    read_inputs,
    read_limits,
    row_name,
    split_into_chunks,
)

Answers = Sequence[Any] | ServiceError  # to the inputs of one request, or why there are none
Answered = tuple[Answers, list[Input]]  # with the inputs themselves
Call = Callable[[Iterable[list[Input]]], Iterator[Answered]]  # answers chunks, in their order
Content = TypeVar("Content")

INPUT_ERRORS = {400, 413, 422}  # statuses that concern the inputs
PASSING_ERRORS = {0, 429, 500, 502, 503, 504}  # statuses that the same request may not get another time
PART_ROWS = 4096
SKIP = "; --skip-errors leaves refused rows without an answer"
DECIDING = {  # what decides an answer to a request, of /info: the model, its defaults, and what is refused
    *("digest", "device", "precision", "execution_provider", "cuda_attention", "versions"),
    *("pooling", "normalize", "embedding", "default_prompt_name", "prompts", "truncate", "special_tokens"),
    *("labels", "label_scores", "pair_labels"),
    *("limits.characters", "limits.tokens", "limits.top_k"),
}
LOCK, NOTE, WRITING = "lock", "job.json", "writing"  # files in the folder of the parts
SHOWN_CHARACTERS = 80  # of a value, in an error


@dataclass(frozen=True, slots=True)
class Task:
    path: str
    pairs: bool = False  # an input may be a pair of texts, and is sent as the list of its texts
    arrays: bool = False  # the answers of a request are the rows of one array
    unwraps: bool = False  # the answer to a list of one input is the answer to that input


TASKS = {
    "embed": Task("/embed", arrays=True),
    "fill-mask": Task("/fill-mask", unwraps=True),
    "nsp": Task("/nsp", pairs=True),
    "predict": Task("/predict", pairs=True),
    "tag": Task("/tag"),
}


class RequestFailed(ServiceError):
    """A server refused a request for good, or could not be reached for `patience_seconds`."""

    code = "request_failed"  # or that of the server

    def __init__(self, message: str, *, status: int = 0, code: str | None = None, index: int | None = None) -> None:
        super().__init__(message, code=code, index=index)
        self.status = status  # of HTTP; 0 if there was no response


class BulkEngine(ABC):
    """What answers any number of inputs: a client of a server, or an engine in this process."""

    @abstractmethod
    def info(self, model: str | None = None) -> dict[str, Any]:
        """The content of /info of the model of this name, or of the default."""

    @abstractmethod
    def one_call(self, task: str, **fields: Any) -> Call:
        """What answers the chunks of one call, whose answers are of one model."""

    @cached_property
    def _limits(self) -> ChunkLimits:
        try:
            return read_limits(self.info())
        except ServiceError as error:
            if error.status != NotFound.status:
                raise
            return ChunkLimits()  # with BERT_ADMIN_PORT /info is on another port

    def chunk(self, inputs: Iterable[Input]) -> Iterator[list[Input]]:
        """The inputs of each request, within the limits of a request."""
        return split_into_chunks(inputs, self._limits)

    def run_all(self, task: str, inputs: Iterable[Input], **fields: Any) -> Iterator[Any]:
        """The answer to each input, in order, for any task of `packbert bulk`. Reads the inputs as it goes.

        Raises ServiceError for an input that is refused; `index` is its place among all.
        """
        first = 0
        inputs = [inputs] if isinstance(inputs, str) else inputs
        for answers, chunk in in_halves(self.one_call(task, **fields), self.chunk(inputs)):
            if isinstance(answers, ServiceError):
                raise place(answers, first, lambda index: f"input {index}")
            first += len(chunk)
            yield from answers


def in_halves(call: Call, chunks: Iterable[list[Input]], *, skip_errors: bool = False) -> Iterator[Answered]:
    """The answers to each chunk; to the halves of a chunk that was refused without saying for which input.

    With `skip_errors` to the halves of each chunk with a refused input, until that is alone.
    """
    for answers, chunk in call(chunks):
        refused = isinstance(answers, ServiceError) and concerns_input(answers)
        if refused and len(chunk) > 1 and (skip_errors or answers.index is None):
            halves = [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
            yield from in_halves(call, halves, skip_errors=skip_errors)
            continue
        if refused and answers.index is None:
            answers.index = 0  # it is alone
        yield answers, chunk


def concerns_input(error: ServiceError) -> bool:
    """Whether other inputs may be answered. A 422 without an index is about the fields that all have."""
    about_fields = error.status == 422 and error.index is None
    return (error.status in INPUT_ERRORS and not about_fields) or error.code == TokenizerFailed.code


def may_pass(error: ServiceError) -> bool:
    """Whether the same job gets further another time: not past an input, a field, a key or a task that is refused."""
    return error.index is None and error.status in PASSING_ERRORS


def place(error: ServiceError, first: int, name: Callable[[int], str]) -> ServiceError:
    """The error of a request with the index among all inputs, which its message then names; `first`: of the request."""
    if error.index is not None:
        error.index += first
        error.message = f"{name(error.index)}: {error.message}"
        error.args = (error.message,)
    return error


def in_order(
    chunks: Iterable[list[Input]],
    submit: Callable[[list[Input]], Future[Answers]],
    *,
    size: Callable[[list[Input]], int],
    most: Callable[[], int],
) -> Iterator[Answered]:
    """Submits chunks of at most the size `most()` together, one at least; their results in order, each with its chunk.

    Chunks that are left when the iteration ends early are cancelled.
    """
    pending: deque[tuple[Future[Answers], list[Input], int]] = deque()
    ahead = 0
    try:
        for chunk in chunks:
            need = size(chunk)
            while pending and ahead + need > most():
                future, sent, had = pending[0]
                yield future.result(), sent
                pending.popleft()
                ahead -= had
            pending.append((submit(chunk), chunk, need))
            ahead += need
        while pending:
            yield pending[0][0].result(), pending[0][1]
            pending.popleft()
    finally:
        for future, _, _ in pending:
            future.cancel()


def as_texts(inputs: str | Sequence[Input]) -> list[Input]:
    """A list of texts or pairs, also of a single text: a string is a sequence of strings too."""
    return [inputs] if isinstance(inputs, str) else list(inputs)


def as_json(item: Input, spec: Task) -> str | list[str]:
    """An input as the route takes it. Raises ValueError for a pair if the task takes texts."""
    if isinstance(item, str):
        return [item] if spec.pairs else item
    if not spec.pairs:
        raise ValueError(f"{spec.path} takes texts, this input is a pair")
    return list(item)


@contextmanager
def lock_parts(folder: Path) -> Iterator[None]:
    """Creates the folder and keeps other runs out of it. Raises FileError if another run has it."""
    folder.mkdir(exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.fstat(file.fileno()).st_nlink > 0  # the run that had it may have removed the folder
        except BlockingIOError:
            locked = False
        if not locked:
            raise FileError(f"another run has {folder}: wait until it ends, or take another output")
        yield


def check_note(folder: Path, fingerprint: dict[str, Any]) -> None:
    """Raises FileError with what differs from the fingerprint of the parts."""
    before, now = json.loads((folder / NOTE).read_text("utf-8")), json.loads(json.dumps(fingerprint))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        changes = "; ".join(f"{name} was {_show(before.get(name))} and is {_show(now.get(name))}" for name in names)
        raise FileError(
            f"{folder} holds parts of another job: {changes}. To continue it, run the command as it was; to start "
            "again, delete that folder"
        )


def _show(value: Any) -> str:
    text = "unset" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def write_whole(path: Path, write: Callable[[Path, Content], object], content: Content) -> None:
    """A run that is killed leaves the file whole or not at all."""
    writing = path.with_name(WRITING)
    write(writing, content)
    writing.rename(path)


def finished_parts(folder: Path) -> dict[int, int]:
    """The number of rows without an answer in each part, by its first row."""
    return {int(path.stem): int(path.suffix[1:]) for path in folder.glob("[0-9]*.[0-9]*")}


def part_path(folder: Path, start: int, missing: int) -> Path:
    return folder / f"{start:012d}.{missing}"


def remove_parts(folder: Path) -> None:
    """While it is locked. A run that creates the lock anew at this moment has the folder, and begins."""
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink()
    (folder / LOCK).unlink()
    with suppress(OSError):
        folder.rmdir()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What decides the content of the output."""

    task: str
    source: Path
    output: Path  # its suffix is the format
    column: str = ""  # of the texts; COLUMN if it is empty
    pair_column: str = ""
    fields: dict[str, Any] = field(default_factory=dict)  # of every request
    skip_errors: bool = False  # a refused input has no answer; otherwise it ends the job

    def __post_init__(self) -> None:
        """Raises FileError if the formats do not fit the task, OSError if there is no input."""
        if self.output.suffix not in FORMATS:
            raise FileError(f"{self.output}: the suffix is the format: {', '.join(FORMATS)}")
        if self.output.suffix == ".npy" and not TASKS[self.task].arrays:
            raise FileError(f"{self.output}: answers of {self.task} are no vectors: take .jsonl or .parquet")
        check_source(self.source, self.column, self.pair_column)
        if self.pair_column and not TASKS[self.task].pairs:
            raise FileError(f"--pair-column: {self.task} takes single texts")

    def fingerprint(self, info: dict[str, Any]) -> dict[str, Any]:
        """All that decides the output, by names for an error. `info` is the content of /info."""
        stat = self.source.stat()
        return {
            "version": version("packbert"),
            "task": self.task,
            "the file": str(self.source.resolve()),
            "its size": stat.st_size,
            "its time of change": stat.st_mtime_ns,
            "--column": self.column or COLUMN,
            "--pair-column": self.pair_column,
            "--skip-errors": self.skip_errors,
            "rows of a part": PART_ROWS,
            **{f"--set {name}": value for name, value in self.fields.items()},
            **deciding(info),
        }


def deciding(info: dict[str, Any]) -> dict[str, Any]:
    """The fields of /info that decide an answer; the entries of a dictionary one by one, as "limits.characters"."""
    flat: dict[str, Any] = {}
    for name, value in info.items():
        flat |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    return {name: value for name, value in flat.items() if name in DECIDING or name.split(".")[0] in DECIDING}


def run_job(job: Job, engine: BulkEngine, *, on_rows: Callable[[int], object] = lambda _: None) -> int:
    """Writes the output; returns the number of inputs without an answer. `on_rows` gets the rows that are done.

    Raises FileError, or ServiceError; its index is the row of a refused input.
    """
    folder = job.output.with_name(job.output.name + ".parts")
    write, join = FORMATS[job.output.suffix]
    with lock_parts(folder):
        missing = finished_parts(folder)
        model = job.fields.get("model")
        fingerprint = job.fingerprint(engine.info(model))
        if missing:
            check_note(folder, fingerprint)
        else:
            write_whole(folder / NOTE, Path.write_text, json.dumps(fingerprint))
        for start, answers in _answer_parts(job, engine, set(missing), on_rows):
            check_note(folder, job.fingerprint(engine.info(model)))  # the server or the file may be another by now
            missing[start] = sum(one is None for one in answers)
            write_whole(part_path(folder, start, missing[start]), write, answers)
        joined = job.output.with_name(job.output.name + ".joining")
        join([part_path(folder, start, missing[start]) for start in sorted(missing)], joined)
        joined.replace(job.output)
        remove_parts(folder)
    return sum(missing.values())


def _answer_parts(
    job: Job, engine: BulkEngine, finished: set[int], on_rows: Callable[[int], object]
) -> Iterator[tuple[int, list[Any]]]:
    """The first row and the answers of each part that is not finished yet."""
    parts: dict[int, list[Any]] = {}  # those that have been read, by their first rows; None: no answer yet, or none
    asked: deque[int] = deque()  # the rows of the texts without an answer, in their order

    def chunks() -> Iterator[list[Input]]:
        inputs = enumerate(read_inputs(job.source, job.column, job.pair_column, nulls=job.skip_errors))
        while part := dict(islice(inputs, PART_ROWS)):
            texts = {}
            if (start := min(part)) not in finished:
                parts[start] = [None] * len(part)
                texts = {row: one for row, one in part.items() if one is not None}
            asked.extend(texts)
            on_rows(len(part) - len(texts))
            yield from engine.chunk(texts.values())

    for found, sent in in_halves(engine.one_call(job.task, **job.fields), chunks(), skip_errors=job.skip_errors):
        rows = [asked.popleft() for _ in sent]
        for row, answer in zip(rows, _resolve(job, found, sent, rows), strict=True):
            parts[row - row % PART_ROWS][row % PART_ROWS] = answer
        on_rows(len(sent))
        for start in [start for start in parts if not asked or asked[0] >= start + PART_ROWS]:
            yield start, parts.pop(start)
    yield from parts.items()


def _resolve(job: Job, found: Answers, sent: list[Input], rows: Sequence[int]) -> Sequence[Any]:
    """The answers to the inputs on these rows; None for a refused input, which is alone, with --skip-errors."""
    if not isinstance(found, ServiceError):
        return found
    if concerns_input(found):
        if job.skip_errors:
            return [None] * len(sent)
        found.message += SKIP
    if found.index is not None:
        found.index = rows[found.index]
    raise place(found, 0, partial(row_name, job.source))
