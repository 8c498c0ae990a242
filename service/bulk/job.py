"""Answers all inputs of a file into another file, and continues where an earlier run of the same job stopped.

The answers are written in parts, each as a whole or not at all (`service.bulk.parts`); the last step joins them. So a
job that was killed repeats at most one part, and no row is missing or double.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from service.bulk.chunks import Input
from service.bulk.files import FORMATS, FileError, read_inputs
from service.bulk.parts import check_note, finished_parts, lock_parts, part_path, remove_parts, write_note, write_whole
from service.bulk.tasks import TASKS, Answers, BulkEngine, place
from service.errors import ServiceError

PART_ROWS = 4096
INPUT_ERRORS = {400, 413, 422}  # statuses that concern the inputs; the others end a job, with --skip-errors too
DECIDING = {  # what decides an answer to a request, of /info: the model, its defaults, and what is refused
    *("artifact", "device", "precision", "execution_provider", "cuda_attention", "versions"),
    *("pooling", "normalize", "embedding", "default_prompt_name", "prompts", "truncate"),
    *("labels", "label_scores", "pair_labels"),
    *("limits.characters", "limits.tokens", "limits.top_k"),
}


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

    def fingerprint(self, info: dict[str, Any]) -> dict[str, Any]:
        """All that decides the output, by names for an error. `info` is the content of /info."""
        stat = self.source.stat()
        return {
            "version": version("bert-service"),
            "task": self.task,
            "the file": str(self.source.resolve()),
            "its size": stat.st_size,
            "its time of change": stat.st_mtime_ns,
            "--column": self.column,
            "--pair-column": self.pair_column,
            "--skip-errors": self.skip_errors,
            "rows of a part": PART_ROWS,
            **{f"--set {name}": value for name, value in self.fields.items()},
            **deciding(info),
        }


def deciding(info: dict[str, Any]) -> dict[str, Any]:
    """Those of /info that decide an answer; the entries of a dictionary one by one, as "limits.characters"."""
    flat: dict[str, Any] = {}
    for name, value in info.items():
        flat |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    return {name: value for name, value in flat.items() if name in DECIDING or name.split(".")[0] in DECIDING}


def run_job(job: Job, engine: BulkEngine, *, on_rows: Callable[[int], object] = lambda _: None) -> int:
    """Writes the output; returns the number of inputs without an answer. `on_rows` gets the rows that are done.

    Raises FileError, or ServiceError with the row as its index.
    """
    job.check()
    folder = job.output.with_name(job.output.name + ".parts")
    write, join = FORMATS[job.output.suffix]
    with lock_parts(folder):
        missing = finished_parts(folder)
        (check_note if missing else write_note)(folder, job.fingerprint(engine.info()))
        for start, answers in _answer_parts(job, engine, set(missing), on_rows):
            check_note(folder, job.fingerprint(engine.info()))  # the server may be another one by now, or the file
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
    waiting: list[tuple[int, int]] = []  # first row and size of the parts that are being answered

    def chunks() -> Iterator[list[Input]]:
        rows, start = read_inputs(job.source, job.column, job.pair_column), 0
        while part := list(islice(rows, PART_ROWS)):
            if start in finished:
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


def _resolve(job: Job, engine: BulkEngine, found: Answers, sent: list[Input], first: int) -> Sequence[Any]:
    """The answers to a request's inputs; where it failed, those to its halves, until each refused input is alone."""
    if not isinstance(found, ServiceError):
        return found
    named = found.index is not None or len(sent) == 1
    if found.status not in INPUT_ERRORS or (named and not job.skip_errors):
        found.index = found.index or 0
        raise place(found, first, "row")
    if len(sent) == 1:
        return [None]
    half = len(sent) // 2
    answers: list[Any] = []
    for again, part in engine.run_chunks(job.task, iter([sent[:half], sent[half:]]), **job.fields):
        answers += _resolve(job, engine, again, part, first + len(answers))
    return answers
