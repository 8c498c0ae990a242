"""`bert-client TASK FILE --output FILE`: the answers to all texts of a file, in its order; continues after a stop."""

import argparse
import os
import sys
from pathlib import Path

from tqdm import tqdm

from service.bulk.arguments import add_job_arguments, make_job
from service.bulk.files import FileError
from service.bulk.job import run_job
from service.bulk.tasks import TASKS, RequestFailed
from service.client.client import Client


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bert-client", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("file", type=Path, help="one text a line, .csv, .jsonl or .parquet")
    parser.add_argument("--output", "-o", type=Path, required=True, help=".npy (vectors), .jsonl or .parquet")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the service (default: %(default)s)")
    add_job_arguments(parser)
    parser.add_argument("--requests", type=int, default=8, help="most requests at a time (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for a server that is not there")
    parser.epilog = "The key of a server with one is taken from the environment variable BERT_API_KEY."
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 when all rows are answered, 3 when some were skipped, 2 for wrong arguments, 1 otherwise."""
    asked = parse_arguments(arguments)
    try:
        job = make_job(asked, task=asked.task, source=asked.file, output=asked.output)
        key = os.environ.get("BERT_API_KEY", "")
        with (
            Client(asked.url, api_key=key, max_requests=asked.requests, patience_seconds=asked.patience) as client,
            tqdm(unit=" rows", desc=asked.task) as bar,
        ):
            refused = run_job(job, client, on_rows=bar.update)
    except (FileError, OSError) as error:
        print(f"bert-client: {error}", file=sys.stderr)
        return 2
    except RequestFailed as error:
        print(f"bert-client: {error}; the same command continues", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bert-client: stopped; the same command continues", file=sys.stderr)
        return 130
    if refused:
        print(f"bert-client: {refused} rows were refused and have no answer", file=sys.stderr)
    return 3 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
