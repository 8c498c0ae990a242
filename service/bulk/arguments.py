"""The arguments of the commands that answer a file."""

import argparse
import json
from pathlib import Path
from typing import Any

from service.bulk.files import FileError
from service.bulk.job import Job


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """What decides the content of the output, except for the files."""
    parser.add_argument("--column", default="text", help="of the texts, in all but text files (default: %(default)s)")
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


def make_job(parsed: argparse.Namespace, *, task: str, source: Path, output: Path) -> Job:
    """Raises FileError for --set without an equals sign."""
    return Job(
        task=task,
        source=source,
        output=output,
        column=parsed.column,
        pair_column=parsed.pair_column,
        fields=dict(parse_field(one) for one in parsed.set),
        skip_errors=parsed.skip_errors,
    )


def parse_field(text: str) -> tuple[str, Any]:
    """FIELD=VALUE; raises FileError without an equals sign."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise FileError(f"--set {text}: write FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
