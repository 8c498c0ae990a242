"""Arguments, messages and exit codes of the commands that answer a file."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packbert.parser import Parser

from ..errors import ServiceError
from .files import COLUMN, FileError
from .job import Job, may_pass

CONTINUES = "; the same command continues"


def add_job_arguments(parser: Parser, *output: str, **required: bool) -> None:
    """What decides the content of the output, and the files; `output` has the names of that argument."""
    parser.add("files", "input", metavar="INPUT", type=Path, help="one text a line, .csv, .jsonl or .parquet")
    about = ".npy (vectors), .jsonl or .parquet"
    parser.add("files", *output, metavar="OUTPUT", type=Path, help=about, **required)
    about = f"of the texts, in all but text files (default: {COLUMN})"
    parser.add("files", "--column", default="", metavar="NAME", help=about)
    parser.add("files", "--pair-column", default="", metavar="NAME", help="of the second texts, for nsp and predict")
    about = "a field of every request, as --set pooling=mean --set truncate=true; the value is JSON or a string"
    parser.add("answers", "--set", action="append", default=[], metavar="FIELD=VALUE", help=about)
    about = "a refused input gets null (NaN); else it ends the job"
    parser.add("answers", "--skip-errors", action="store_true", help=about)


def make_job(parsed: argparse.Namespace) -> Job:
    """Raises FileError for --set without an equals sign, and what `Job` raises."""
    return Job(
        task=parsed.task,
        source=parsed.input,
        output=parsed.output,
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


def run_command(program: str, answer: Callable[[], int], *wrong: type[Exception]) -> int:
    """Runs `answer`, which returns the number of rows that were refused, and reports under the name `program`.

    The exit code: 0 when all rows are answered, 3 when some were skipped, 2 for a file or one of `wrong`, 130 for
    Ctrl-C, 1 for a request that failed.
    """
    faults: tuple[type[Exception], ...] = (FileError, OSError, *wrong)
    try:
        refused = answer()
    except faults as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except ServiceError as error:
        print(f"{program}: {error}{CONTINUES if may_pass(error) else ''}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: stopped{CONTINUES}", file=sys.stderr)
        return 130
    if refused:
        print(f"{program}: rows that were refused and have no answer: {refused}", file=sys.stderr)
    return 3 if refused else 0
