"""`packbert client TASK FILE -o FILE`: the answers to all texts of a file, in its order; continues after a stop."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from packbert.service.library.arguments import add_job_arguments, make_job, run_command
from packbert.service.library.client import Client
from packbert.service.library.job import TASKS, run_job


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="packbert client", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("file", type=Path, help="one text a line, .csv, .jsonl or .parquet")
    parser.add_argument("--output", "-o", type=Path, required=True, help=".npy (vectors), .jsonl or .parquet")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the service (default: %(default)s)")
    add_job_arguments(parser)
    parser.add_argument("--requests", type=int, default=8, help="most requests at a time (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for a server that is not there")
    parser.epilog = "The key of a server with one is taken from the environment variable BERT_API_KEY."
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, as `run_command` has it."""
    return run_command("packbert client", partial(_answer, parse_arguments(arguments)))


def _answer(asked: argparse.Namespace) -> int:
    """The number of rows that were refused."""
    job = make_job(asked, task=asked.task, source=asked.file, output=asked.output)
    key = os.environ.get("BERT_API_KEY", "")
    with (
        Client(asked.url, api_key=key, max_requests=asked.requests, patience_seconds=asked.patience) as client,
        tqdm(unit=" rows", desc=asked.task) as bar,
    ):
        return run_job(job, client, on_rows=bar.update)


if __name__ == "__main__":
    sys.exit(main())
