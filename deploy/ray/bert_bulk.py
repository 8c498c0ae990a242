"""Ray Data: a file answered on all nodes of a cluster. Each row keeps its columns and gets `output`, in their order.

python bert_bulk.py in.parquet out.parquet --model /models/bert --threads 4 --task embed --set pooling=mean

The output is a folder of Parquet files, which appears when all rows have been counted in it. Ray repeats what was on a
node that was lost.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow
import ray
from pyarrow import dataset
from ray import data

from packbert import Engine

ROWS = 4096  # of one call of an engine
READERS: dict[str, Any] = {
    ".parquet": data.read_parquet,
    ".csv": data.read_csv,
    ".jsonl": lambda path: data.read_json(path, lines=True),
    ".txt": lambda path: data.read_text(path, drop_empty_lines=False),
}


class Answerer:
    """One engine on a node, which answers batches of rows."""

    def __init__(self, model: str, threads: int, task: str, columns: list[str], fields: dict[str, Any]) -> None:
        self._task, self._columns, self._fields = task, columns, fields
        self._engine = Engine.from_model(model, threads=threads)
        self._engine.__enter__()  # until the process ends

    def __call__(self, rows: pyarrow.Table) -> pyarrow.Table:
        columns = [rows[name].to_pylist() for name in self._columns]
        inputs = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        answers = list(self._engine.run_all(self._task, inputs, **self._fields))
        if self._task == "embed":
            found = pyarrow.array(answers, pyarrow.list_(pyarrow.float32()))
        else:
            found = pyarrow.array([json.dumps(one, ensure_ascii=False) for one in answers], pyarrow.string())
        return rows.append_column("output", found)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bert_bulk.py", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help=", ".join(READERS))
    parser.add_argument("output", type=Path, help="a folder, which all nodes share")
    parser.add_argument("--model", required=True, help="a folder that every node has")
    parser.add_argument("--threads", type=int, default=1, help="CPUs of one engine (default: %(default)s)")
    parser.add_argument("--task", default="embed", help="as of `packbert bulk` (default: %(default)s)")
    parser.add_argument("--column", default="text", help="of the texts (default: %(default)s)")
    parser.add_argument("--pair-column", help="of the second texts, for nsp and predict")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=JSON", help="a field of every request")
    return parser.parse_args(arguments)


def parse_field(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main(arguments: list[str] | None = None) -> int:
    asked = parse_arguments(arguments)
    if asked.file.suffix not in READERS:
        sys.exit(f"{asked.file}: the suffix is the format: {', '.join(READERS)}")
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    engines = max(1, int(ray.cluster_resources()["CPU"] - 1) // asked.threads)  # one CPU reads and writes
    data.DataContext.get_current().execution_options.preserve_order = True
    columns = [asked.column, asked.pair_column] if asked.pair_column else [asked.column]
    rows = READERS[asked.file.suffix](str(asked.file.resolve()))
    answered = rows.map_batches(
        Answerer,
        fn_constructor_args=(asked.model, asked.threads, asked.task, columns, dict(map(parse_field, asked.set))),
        batch_size=ROWS,
        batch_format="pyarrow",
        num_cpus=asked.threads,
        concurrency=(1, engines),
    )
    writing = asked.output.with_name(asked.output.name + ".writing").resolve()
    shutil.rmtree(writing, ignore_errors=True)
    answered.write_parquet(str(writing))
    if (found := dataset.dataset(writing).count_rows()) != (wanted := rows.count()):
        sys.exit(f"{writing} holds {found} rows, the input has {wanted}: do all nodes share the folder?")
    shutil.rmtree(asked.output, ignore_errors=True)
    writing.rename(asked.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
