"""The flags of `packbert serve`: one for each setting, in groups."""

import argparse
import re
from collections.abc import Collection, Sequence
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from packbert.parser import Parser

from .model_names import MODEL_NAME
from .settings import GONE, KEYS, PREFIX, Settings, kind_of

GROUPS: dict[str, tuple[str, ...]] = {
    "model": (
        *("model", "models", "precision", "cache", "device", "served_model_name"),
        *("pooling", "normalize", "rerank", "root_task", "truncate", "special_tokens"),
    ),
    "network": (*("host", "port", "admin_port", "api_key", "api_key_file", "admin_key", "cors_origins", "page"),),
    "limits": (
        *("max_waiting_tokens", "max_wait_seconds", "max_inputs", "max_characters", "max_body_bytes"),
        *("timeout_ms", "linger_seconds", "drain_seconds", "run_timeout_seconds"),
    ),
    "speed": ("workers", "threads", "token_budget", "memory_limit"),
    "logs": ("log_format", "access_log", "log_level"),
}
METAVARS = {
    "model": "MODEL",
    "models": "NAMES",
    "cache": "FOLDER",
    "served_model_name": "NAME",
    "host": "ADDRESS",
    "api_key_file": "FILE",
    "memory_limit": "SIZE",
    "cors_origins": "ORIGINS",
    "timeout_ms": "MILLISECONDS",
}
METAVARS_BY_END = {"port": "PORT", "bytes": "BYTES", "seconds": "SECONDS", "tokens": "TOKENS", "budget": "TOKENS"}
ABOUT = (
    "Serves a trained BERT over REST. MODEL is a hub id (ORG/NAME or ORG/NAME@REVISION), a checkpoint's folder or "
    "an artifact; a checkpoint is exported at its first start."
)
NOTE = (
    "Each flag sets the environment variable of the same name: --max-inputs is BERT_MAX_INPUTS. BERT_API_KEY and "
    "BERT_ADMIN_KEY have no flag, because all users of a machine can read a command line."
)
EXAMPLES = (
    "packbert serve google-bert/bert-base-chinese --precision auto",
    "packbert serve ./my-checkpoint --host 0.0.0.0 --port 9000 --workers 2",
)


def variables_of(words: Sequence[str]) -> dict[str, str]:
    """The BERT_* variables that the flags in `words` set. An unknown flag ends the process with exit code 2."""
    parser = _parser()
    given = parser.read(words)
    if given.MODEL and (given.model is not None or given.models is not None):
        parser.error("MODEL and --model name two models: leave one out")
    if named := [one for one in given.MODEL if MODEL_NAME.fullmatch(one.partition("=")[0]) and "=" in one]:
        given.models = " ".join(named)
    if unnamed := [one for one in given.MODEL if one not in named]:
        if given.MODEL[1:]:
            parser.error(f"there is no place for the argument {unnamed[-1]}: several models are NAME=MODEL each")
        given.model = unnamed[0]
    del given.MODEL
    return {PREFIX + name.upper(): value for name, value in vars(given).items() if value is not None}


def in_flags(message: str, variables: Collection[str]) -> str:
    """`message` with the flag in place of each of `variables`, which flags have set."""
    if message.startswith("unknown setting"):  # a variable, then the list of all: one form for both
        return message
    return re.sub(
        r"\bBERT_[A-Z_]+\b",
        lambda found: flag_of(found[0].removeprefix(PREFIX).lower()) if found[0] in variables else found[0],
        message,
    )


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parser() -> Parser:
    parser = Parser("packbert serve", "MODEL [FLAGS]", ABOUT, EXAMPLES, NOTE)
    parser.add("model", "MODEL", nargs="*", help="as --model; NAME=MODEL, once or several times, as --models")
    for gone in GONE:  # its variable is refused with what became of it
        parser.add("gone", flag_of(gone.removeprefix(PREFIX).lower()), nargs="?", const="true", help=argparse.SUPPRESS)
    for title, names in GROUPS.items():
        for name in names:
            if name not in KEYS:  # all users of the machine can read a command line
                field = Settings.model_fields[name]
                about = f"{field.description} (default: {_default(field)})".replace("%", "%%")  # as argparse formats it
                alone = {"nargs": "?", "const": "true"} if kind_of(field) is bool else {}  # `--truncate` is true
                parser.add(title, flag_of(name), metavar=_metavar(name, field), help=about, **alone)
    return parser


def _metavar(name: str, field: FieldInfo) -> str:
    kind = kind_of(field)
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if kind is bool:
        return "true|false"
    return METAVARS.get(name) or METAVARS_BY_END.get(name.rpartition("_")[2], "NUMBER")


def _default(field: FieldInfo) -> str:
    if field.default is None:
        return "unset"
    return str(field.default).lower() if field.default != "" else "empty"
