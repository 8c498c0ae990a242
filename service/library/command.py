"""`bert-service bulk FILE OUTPUT`: the answers to all texts of a file, in its order, by an engine in this process.

The same command continues a job that was stopped or killed. The settings are the BERT_* variables of the service.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from service.artifact import ManifestError
from service.bulk.arguments import add_job_arguments, make_job
from service.bulk.files import FileError
from service.bulk.job import Job, run_job
from service.bulk.tasks import TASKS, RequestFailed
from service.errors import DeviceError
from service.library.engine import Engine
from service.library.job_engine import JobEngine
from service.settings import Settings, SettingsError, variables_with

PACKAGES = {"tqdm": "client", "pyarrow": "client", "ray": "ray"}  # the extra of each that a job may need


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bert-service bulk", description=__doc__)
    parser.add_argument("file", type=Path, help="one text a line, .csv, .jsonl or .parquet")
    parser.add_argument("output", type=Path, help=".npy (vectors), .jsonl or .parquet")
    parser.add_argument("--task", choices=TASKS, default="embed", help="(default: %(default)s)")
    parser.add_argument("--artifact", type=Path, help="folder written by bert-export (default: BERT_ARTIFACT)")
    add_job_arguments(parser)
    parser.add_argument(
        "--ray", action="store_true", help="on all nodes of a Ray cluster, which share the folders of both files"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 when all rows are answered, 3 when some were skipped, 2 for wrong arguments, 1 otherwise."""
    asked = parse_arguments(arguments)
    try:
        _check_packages(asked)
        job = make_job(asked, task=asked.task, source=asked.file, output=asked.output)
        job.check()
        named = {} if asked.artifact is None else {"BERT_ARTIFACT": str(asked.artifact)}
        settings = Settings.from_environment(variables_with(**named))
        refused = (_run_on_ray if asked.ray else _run_here)(job, settings)
    except (FileError, OSError, SettingsError, ManifestError, DeviceError) as error:
        print(f"bert-service bulk: {error}", file=sys.stderr)
        return 2
    except RequestFailed as error:
        print(f"bert-service bulk: {error}; the same command continues", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bert-service bulk: stopped; the same command continues", file=sys.stderr)
        return 130
    if refused:
        print(f"bert-service bulk: {refused} rows were refused and have no answer", file=sys.stderr)
    return 3 if refused else 0


def _check_packages(asked: argparse.Namespace) -> None:
    """Raises SettingsError where a package is missing that this job needs."""
    parquet = asked.ray or ".parquet" in (asked.file.suffix, asked.output.suffix)
    needed = ["tqdm", *(["pyarrow"] if parquet else []), *(["ray"] if asked.ray else [])]
    if missing := [name for name in needed if find_spec(name) is None]:
        extras = ",".join(sorted({PACKAGES[name] for name in missing}))
        raise SettingsError(f"this needs {', '.join(missing)}: pip install 'bert-service[service,{extras}]'")


def _run_here(job: Job, settings: Settings) -> int:
    from tqdm import tqdm

    with Engine(settings) as engine, tqdm(unit=" rows", desc=job.task) as bar:
        return run_job(job, JobEngine(engine), on_rows=bar.update)


def _run_on_ray(job: Job, settings: Settings) -> int:
    from service.library.ray_data import run_on_ray

    return run_on_ray(job, settings)
