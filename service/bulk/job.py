"""Answers all inputs of a file into another file, and continues where an earlier run of the same job stopped.

The answers are written in parts, `OUTPUT.parts/000000000000`, ..., each written as a whole or not at all; the last step
joins them. So a job that was killed repeats at most one part, and no row is missing or double.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from service.bulk.chunks import Input
from service.bulk.files import FORMATS, FileError, read_inputs
from service.bulk.tasks import TASKS, Answers, BulkEngine, RequestFailed

PART_ROWS = 4096
INPUT_ERRORS = range(400, 500)  # statuses that concern the inputs of a request


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What decides the content of the output."""

    task: str
    source: Path
    output: Path  # its suffix is the format
    column: str = "text"
    pair_column: str = ""
    fields: dict[str, Any] = field(default_factory=dict)  # of every request
    skip_errors: bool = False  # a refused input has no answer; otherwise it ends the job

    def check(self) -> None:
        """Raises FileError where the formats do not fit the task."""
        if self.output.suffix not in FORMATS:
            raise FileError(f"{self.output}: the suffix is the format: {', '.join(FORMATS)}")
        if self.output.suffix == ".npy" and not TASKS[self.task].arrays:
            raise FileError(f"{self.output}: answers of {self.task} are no vectors: take .jsonl or .parquet")
        if self.pair_column and not TASKS[self.task].pairs:
            raise FileError(f"--pair-column: {self.task} takes single texts")

    def fingerprint(self, artifact: str) -> dict[str, Any]:
        """Equal for two runs of one job. `artifact` is the digest of the model's files, of /info."""
        stat = self.source.stat()
        source = [str(self.source.resolve()), stat.st_size, stat.st_mtime_ns]
        columns = [self.column, self.pair_column]
        return {"task": self.task, "source": source, "columns": columns, "fields": self.fields, "artifact": artifact}


def run_job(job: Job, engine: BulkEngine, *, on_rows: Callable[[int], object] = lambda _: None) -> int:
    """Writes the output; returns the number of inputs without an answer. `on_rows` gets the rows that are done.

    Raises FileError, or RequestFailed with the row as its index.
    """
    job.check()
    folder = job.output.with_name(job.output.name + ".parts")
    _claim(folder, job.fingerprint(str(engine.info().get("artifact", ""))))
    write, join = FORMATS[job.output.suffix]
    parts: list[Path] = []
    refused = 0
    for start, answers in _answer_parts(job, engine, folder, parts, on_rows):
        path, writing = _part_path(folder, start), folder / "writing"
        write(writing, answers)
        writing.rename(path)
        refused += sum(one is None for one in answers)
    joined = job.output.with_name(job.output.name + ".joining")
    join(parts, joined)
    joined.replace(job.output)
    shutil.rmtree(folder)
    return refused


def _claim(folder: Path, fingerprint: dict[str, Any]) -> None:
    """Creates the folder of the parts; raises FileError if another job's parts are in it."""
    folder.mkdir(exist_ok=True)
    note, content = folder / "job.json", json.dumps(fingerprint)
    if not note.exists():
        writing = folder / "writing"  # as a whole or not at all, as a part: a killed job is to go on
        writing.write_text(content, "utf-8")
        writing.rename(note)
    elif note.read_text("utf-8") != content:
        raise FileError(
            f"{folder} holds parts of another job (other input, options or model): delete it to start again"
        )


def _part_path(folder: Path, start: int) -> Path:
    return folder / f"{start:012d}"


def _answer_parts(
    job: Job, engine: BulkEngine, folder: Path, parts: list[Path], on_rows: Callable[[int], object]
) -> Iterator[tuple[int, list[Any]]]:
    """The first row and the answers of each part that is not there yet. Appends the paths of all parts to `parts`."""
    waiting: list[tuple[int, int]] = []  # first row and size of the parts that are being answered

    def chunks() -> Iterator[list[Input]]:
        rows, start = read_inputs(job.source, job.column, job.pair_column), 0
        while part := list(islice(rows, PART_ROWS)):
            parts.append(_part_path(folder, start))
            if parts[-1].exists():
                on_rows(len(part))
            else:
                waiting.append((start, len(part)))
                yield from engine.chunk(part)
            start += len(part)

    answers: list[Any] = []
    for found, sent in engine.run_chunks(job.task, chunks(), **job.fields):
        start, size = waiting[0]
        answers += _resolve(job, engine, found, sent, start + len(answers))
        on_rows(len(sent))
        if len(answers) == size:
            waiting.pop(0)
            yield start, answers
            answers = []


def answer_inputs(job: Job, engine: BulkEngine, inputs: Sequence[Input]) -> list[Any]:
    """The answer to each of the inputs, None for one that was refused and may be left out.

    Raises RequestFailed with the place of a refused input among them.
    """
    answers: list[Any] = []
    for found, sent in engine.run_chunks(job.task, engine.chunk(inputs), **job.fields):
        answers += _resolve(job, engine, found, sent, len(answers))
    return answers


def _resolve(job: Job, engine: BulkEngine, found: Answers, sent: list[Input], first: int) -> Sequence[Any]:
    """The answers to a request's inputs; where it failed, those to its halves, until each refused input is alone."""
    if not isinstance(found, RequestFailed):
        return found
    if found.status not in INPUT_ERRORS or (len(sent) == 1 and not job.skip_errors):
        raise RequestFailed(f"row {first}: {found}", status=found.status, index=first)
    if not job.skip_errors and found.index is not None:
        raise RequestFailed(f"row {first + found.index}: {found}", status=found.status, index=first + found.index)
    if len(sent) == 1:
        return [None]
    half = len(sent) // 2
    answers: list[Any] = []
    for again, part in engine.run_chunks(job.task, iter([sent[:half], sent[half:]]), **job.fields):
        answers += _resolve(job, engine, again, part, first + len(answers))
    return answers
