"""`packbert tune MODEL`: measures which runtime computes an fp32 encoder faster here, and keeps the choice."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from packbert.parser import Parser
from packbert.service.artifact import ManifestError
from packbert.service.engine.cpu import available_cores
from packbert.service.engine.device import find_artifact
from packbert.service.engine.runtimes import CHOICE, why_no_choice
from packbert.service.engine.tune import tune
from packbert.service.errors import DeviceError
from packbert.service.library.arguments import run_command
from packbert.service.model_cache import ModelError
from packbert.service.settings import Settings, SettingsError, variables_with

ABOUT = (
    "Measures three batches of an fp32 model in ONNX Runtime and in OpenVINO, in turns, and keeps the choice beside "
    "the artifact for the services that start on such a processor with as many threads. A service does the same at its "
    "first start, where it can write to the artifact's folder."
)
NOTE = "The other settings are the BERT_* variables of `packbert serve`, such as BERT_THREADS."
EXAMPLES = ("packbert tune google-bert/bert-base-chinese", "BERT_THREADS=8 packbert tune ./artifact")


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("packbert tune", "MODEL", ABOUT, EXAMPLES, NOTE)
    parser.add("model", "model", metavar="MODEL", help="a hub id, a checkpoint's folder or an artifact")
    return parser.read(words)


def main(words: Sequence[str]) -> int:
    """The exit code, as `run_command` has it."""
    model: str = parse_arguments(words).model
    return run_command("packbert tune", partial(_tune, model), SettingsError, ManifestError, DeviceError, ModelError)


def _tune(model: str) -> int:
    settings = Settings.from_environment(variables_with(BERT_MODEL=model))
    artifact = find_artifact(settings).artifact
    if fault := why_no_choice(artifact):
        raise DeviceError(fault)
    choice = tune(artifact, settings.threads or available_cores())
    for batch, times in choice.milliseconds.items():
        sys.stdout.write(f"{batch}: {', '.join(f'{name} {one:g} ms' for name, one in times.items())}\n")
    choice.keep(artifact)
    sys.stdout.write(f"{choice.runtime}, because {choice.reason}; kept in {artifact.folder / CHOICE}\n")
    return 0
