"""A job of files on all nodes of a Ray cluster: Ray Data reads rows, gives batches of them to engines, and writes them.

Each row keeps its columns and gets `output`. Ray repeats what was on a node that was lost. The output is a folder of
Parquet files, which appears when all rows have been counted in it.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ray
from pyarrow import Table, compute, dataset
from ray import data
from ray.data import Dataset

from service.bulk.files import OUTPUT, FileError, make_column, take_inputs
from service.bulk.job import PART_ROWS, Job, answer_inputs
from service.library.engine import Engine
from service.library.job_engine import JobEngine
from service.settings import Settings

READERS: dict[str, Callable[[str], Dataset]] = {
    ".parquet": data.read_parquet,
    ".csv": data.read_csv,
    ".jsonl": partial(data.read_json, lines=True),
    ".txt": partial(data.read_text, drop_empty_lines=False),
}


class Answerer:
    """One engine on a node, which answers batches of rows."""

    def __init__(self, job: Job, settings: Settings) -> None:
        self._job = job
        self._engine = Engine(settings)
        self._engine.__enter__()  # until the process ends

    def __call__(self, rows: Table) -> Table:
        inputs = list(take_inputs(rows.to_pylist(), self._job.source, self._job.column, self._job.pair_column))
        return rows.append_column(OUTPUT, make_column(answer_inputs(self._job, JobEngine(self._engine), inputs)))


def run_on_ray(job: Job, settings: Settings) -> int:
    """The number of rows without an answer. Raises FileError, and what Ray raises for a row that is refused."""
    if job.output.suffix != ".parquet" or job.source.suffix not in READERS:
        raise FileError(f"--ray reads {', '.join(READERS)} and writes .parquet, not {job.source} and {job.output}")
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    threads = settings.threads or 1
    engines = max(1, int(ray.cluster_resources()["CPU"] - 1) // threads)  # one CPU reads and writes
    context = data.DataContext.get_current()
    context.execution_options.preserve_order = True
    rows = READERS[job.source.suffix](str(job.source.resolve()))
    answered: Dataset = rows.map_batches(
        Answerer,
        fn_constructor_args=(job, settings.model_copy(update={"threads": threads})),
        batch_size=PART_ROWS,
        batch_format="pyarrow",
        num_cpus=threads,
        concurrency=(1, engines),
    )
    return _write(answered, rows.count(), job.output)


def _write(answered: Dataset, rows: int, output: Path) -> int:
    """Raises FileError where the folder does not hold so many rows."""
    writing = output.with_name(output.name + ".writing").resolve()
    shutil.rmtree(writing, ignore_errors=True)
    answered.write_parquet(str(writing))
    written = dataset.dataset(writing)
    if (found := written.count_rows()) != rows:
        raise FileError(f"{writing} holds {found} rows, the input has {rows}: do all nodes share the folder?")
    refused: int = written.count_rows(filter=compute.is_null(dataset.field(OUTPUT)))
    if output.is_dir():
        shutil.rmtree(output)
    writing.rename(output)
    return refused
