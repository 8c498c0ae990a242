"""`packbert tune MODEL`: measures which runtime computes an fp32 encoder faster here, and keeps the choice."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from packbert.parser import Parser, whole_number
from packbert.service.artifact import ManifestError
from packbert.service.engine.cpu import available_cores
from packbert.service.engine.device import find_artifact
from packbert.service.engine.runtimes import CHOICE, why_no_choice
from packbert.service.errors import DeviceError
from packbert.service.flags import in_flags
from packbert.service.library.arguments import run_command
from packbert.service.logs import configure_logging
from packbert.service.model_cache import ModelError
from packbert.service.settings import Settings, SettingsError, variables_with

ABOUT = (
    "Measures three batches of an fp32 model in ONNX Runtime and in OpenVINO, in turns, and keeps the choice beside "
    "the artifact for the services that start on such a processor. A service does the same at its first start, where "
    "it can write to the artifact's folder."
)
NOTE = "The other settings are the BERT_* variables of `packbert serve`, such as BERT_CACHE."
EXAMPLES = ("packbert tune google-bert/bert-base-chinese", "packbert tune ./artifact --threads 8")


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("packbert tune", "MODEL [FLAGS]", ABOUT, EXAMPLES, NOTE)
    parser.add("model", "model", metavar="MODEL", help="a hub id, a checkpoint's folder or an artifact")
    about = "that the service will have (default: BERT_THREADS, or one per available core)"
    parser.add("speed", "--threads", type=whole_number, metavar="THREADS", help=about)
    return parser.read(words)


def main(words: Sequence[str]) -> int:
    """The exit code, as `run_command` has it."""
    asked = parse_arguments(words)
    return run_command("packbert tune", partial(_tune, asked), SettingsError, ManifestError, DeviceError, ModelError)


def _tune(asked: argparse.Namespace) -> int:
    try:
        settings = Settings.from_environment(variables_with(BERT_MODEL=asked.model))
    except SettingsError as error:
        raise SettingsError(in_flags(str(error), ["BERT_MODEL"])) from None
    configure_logging(settings)
    artifact = find_artifact(settings).artifact
    if fault := why_no_choice(artifact):
        raise DeviceError(fault)
    from packbert.service.engine.tune import tune  # imports ONNX Runtime

    choice = tune(artifact, asked.threads or settings.threads or available_cores())
    for batch, times in choice.milliseconds.items():
        sys.stdout.write(f"{batch}: {', '.join(f'{name} {one:g} ms' for name, one in times.items())}\n")
    choice.keep(artifact)
    sys.stdout.write(f"{choice.runtime}, because {choice.reason}; kept in {artifact.folder / CHOICE}\n")
    return 0
