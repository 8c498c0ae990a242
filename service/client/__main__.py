"""`bert-client TASK FILE --output FILE`: the answers to all texts of a file, in its order; continues after a stop."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from service.client.bulk import Job, run_job
from service.client.client import TASKS, Client
from service.client.files import FileError
from service.client.sender import RequestFailed


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bert-client", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("file", type=Path, help="one text a line, .jsonl or .parquet")
    parser.add_argument("--output", "-o", type=Path, required=True, help=".npy (vectors), .jsonl or .parquet")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the service (default: %(default)s)")
    parser.add_argument("--column", default="text", help="of the texts, in .jsonl and .parquet (default: %(default)s)")
    parser.add_argument("--pair-column", default="", help="of the second texts, for nsp and predict")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of every request, as --set pooling=mean --set truncate=true; the value is JSON or a string",
    )
    parser.add_argument(
        "--skip-errors", action="store_true", help="a refused input gets null (NaN); else it ends the job"
    )
    parser.add_argument("--requests", type=int, default=8, help="most requests at a time (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for a server that is not there")
    parser.epilog = "The key of a server with one is taken from the environment variable BERT_API_KEY."
    return parser.parse_args(arguments)


def parse_field(text: str) -> tuple[str, Any]:
    """FIELD=VALUE; raises FileError without an equals sign."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise FileError(f"--set {text}: write FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 when all rows are answered, 3 when some were skipped, 2 for wrong arguments, 1 otherwise."""
    asked = parse_arguments(arguments)
    try:
        job = Job(
            task=asked.task,
            source=asked.file,
            output=asked.output,
            column=asked.column,
            pair_column=asked.pair_column,
            fields=dict(parse_field(one) for one in asked.set),
            skip_errors=asked.skip_errors,
        )
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


def run() -> None:
    """The command bert-client."""
    sys.exit(main())


if __name__ == "__main__":
    run()
