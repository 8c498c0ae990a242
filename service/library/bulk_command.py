"""`packbert bulk --model MODEL INPUT OUTPUT`: the answers to all texts of a file, by an engine in this process."""

import argparse
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

from packbert.parser import Parser, one_of

from ..artifact import ManifestError
from ..errors import DeviceError
from ..flags import in_flags
from ..logs import configure_logging
from ..model_cache import ModelError
from ..settings import Settings, SettingsError, variables_with
from .arguments import add_job_arguments, make_job, run_command
from .engine import Engine
from .job import TASKS, run_job

ABOUT = (
    "Writes the answers to all texts of a file, in its order, by a model in this process. The same command continues "
    "a job that was stopped or killed."
)
NOTE = "The other settings are the BERT_* variables of `packbert serve`, such as BERT_PRECISION and BERT_THREADS."
EXAMPLES = (
    "packbert bulk --model google-bert/bert-base-chinese texts.txt vectors.npy",
    "packbert bulk --model ./my-checkpoint reviews.csv labels.jsonl --task predict --column review --skip-errors",
)
MODEL = "BERT_MODEL"


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("packbert bulk", "--model MODEL INPUT OUTPUT [FLAGS]", ABOUT, EXAMPLES, NOTE)
    about = "a hub id, a checkpoint's folder or an artifact (default: BERT_MODEL)"
    parser.add("model", "--model", metavar="MODEL", help=about)
    add_job_arguments(parser, "output")
    about = f"{', '.join(TASKS)} (default: %(default)s)"
    parser.add("answers", "--task", metavar="TASK", type=one_of(*TASKS), default="embed", help=about)
    return parser.read(words)


def main(words: Sequence[str]) -> int:
    """The exit code, as `run_command` has it."""
    asked = parse_arguments(words)
    return run_command("packbert bulk", partial(_answer, asked), SettingsError, ManifestError, DeviceError, ModelError)


def _answer(asked: argparse.Namespace) -> int:
    """The number of rows that were refused."""
    _check_packages(asked)
    job = make_job(asked)
    named = {} if asked.model is None else {MODEL: asked.model}
    try:
        settings = Settings.from_environment(variables_with(**named))
    except SettingsError as error:
        raise SettingsError(in_flags(str(error), named)) from None
    configure_logging(settings)  # an export shows its progress
    from tqdm import tqdm

    with Engine(settings) as engine, tqdm(unit=" rows", desc=job.task) as bar:
        return run_job(job, engine, on_rows=bar.update)


def _check_packages(asked: argparse.Namespace) -> None:
    """Raises SettingsError if a package is missing that this job needs."""
    parquet = ".parquet" in (asked.input.suffix.lower(), asked.output.suffix)
    if missing := [name for name in ("tqdm", *(["pyarrow"] if parquet else [])) if find_spec(name) is None]:
        raise SettingsError(f"this needs {', '.join(missing)}: install packbert with the extra service,client")
