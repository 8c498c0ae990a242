"""The flags of `bert-service`: one for each setting, which sets the variable of that setting."""

import argparse
from collections.abc import Sequence
from importlib.metadata import version
from typing import get_args

from pydantic.fields import FieldInfo

from service.settings import PREFIX, Settings

WITHOUT_FLAG = ("api_key",)  # all users of the machine can read a command line
ABOUT = (
    "Serves a trained BERT over REST. `--model` takes a hub id (ORG/NAME or ORG/NAME@REVISION), a checkpoint's folder "
    "or an artifact. Each flag sets the environment variable of the same name: --max-inputs is BERT_MAX_INPUTS."
)
EPILOG = "BERT_API_KEY has no flag, because all users of a machine can read a command line."


def variables_of(words: Sequence[str]) -> dict[str, str]:
    """The BERT_* variables that the flags in `words` set. An unknown flag ends the process with exit code 2."""
    given = _parser().parse_args(words)
    return {PREFIX + name.upper(): value for name, value in vars(given).items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bert-service", description=ABOUT, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"bert-service {version('bert-service')}")
    for name, field in Settings.model_fields.items():
        if name not in WITHOUT_FLAG:
            flag, about = f"--{name.replace('_', '-')}", f"{field.description} (default: {_default(field)})"
            if bool in (field.annotation, *get_args(field.annotation)):  # `--truncate` alone is true
                parser.add_argument(flag, nargs="?", const="true", metavar="true|false", help=_escaped(about))
            else:
                parser.add_argument(flag, metavar=name.rpartition("_")[2].upper(), help=_escaped(about))
    return parser


def _default(field: FieldInfo) -> str:
    if field.default is None:
        return "unset"
    return str(field.default).lower() if field.default != "" else "empty"


def _escaped(text: str) -> str:
    """As argparse formats help."""
    return text.replace("%", "%%")
