"""`packbert bulk FILE OUTPUT`: the answers to all texts of a file, in its order, by an engine in this process.

The same command continues a job that was stopped or killed. The settings are the BERT_* variables of the service.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from packbert.service.artifact import ManifestError
from packbert.service.errors import DeviceError
from packbert.service.library.arguments import add_job_arguments, make_job, run_command
from packbert.service.library.engine import Engine
from packbert.service.library.job import TASKS, Job, run_job
from packbert.service.settings import Settings, SettingsError, variables_with


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="packbert bulk", description=__doc__)
    parser.add_argument("file", type=Path, help="one text a line, .csv, .jsonl or .parquet")
    parser.add_argument("output", type=Path, help=".npy (vectors), .jsonl or .parquet")
    parser.add_argument("--task", choices=TASKS, default="embed", help="(default: %(default)s)")
    parser.add_argument("--artifact", type=Path, help="folder written by packbert export (default: BERT_ARTIFACT)")
    add_job_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """The exit code, as `run_command` has it."""
    asked = parse_arguments(arguments)
    return run_command("packbert bulk", partial(_answer, asked), SettingsError, ManifestError, DeviceError)


def _answer(asked: argparse.Namespace) -> int:
    """The number of rows that were refused."""
    _check_packages(asked)
    job = make_job(asked, task=asked.task, source=asked.file, output=asked.output)
    job.check()
    named = {} if asked.artifact is None else {"BERT_ARTIFACT": str(asked.artifact)}
    settings = Settings.from_environment(variables_with(**named))
    return _run(job, settings)


def _check_packages(asked: argparse.Namespace) -> None:
    """Raises SettingsError where a package is missing that this job needs."""
    parquet = ".parquet" in (asked.file.suffix, asked.output.suffix)
    if missing := [name for name in ("tqdm", *(["pyarrow"] if parquet else [])) if find_spec(name) is None]:
        raise SettingsError(f"this needs {', '.join(missing)}: install packbert with the extra service,client")


def _run(job: Job, settings: Settings) -> int:
    from tqdm import tqdm

    with Engine(settings) as engine, tqdm(unit=" rows", desc=job.task) as bar:
        return run_job(job, engine, on_rows=bar.update)
