"""The command `packbert`: serve, export, describe, download, bulk, client.

Each command needs the packages of an extra; if one of them is missing, the exit code is 2.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from packbert.parser import did_you_mean

USAGE = """usage: packbert COMMAND ...

  packbert serve MODEL                      serves a model over REST: a hub id, a checkpoint's folder or an artifact
  packbert export CHECKPOINT ARTIFACT       converts a trained BERT to an artifact
  packbert describe MODEL                   describes a checkpoint without exporting it, or an artifact
  packbert download CHECKPOINT              downloads a checkpoint into the hub's cache and prints its folder
  packbert bulk --model MODEL INPUT OUTPUT  answers all texts of a file by a model in this process
  packbert client TASK INPUT -o OUTPUT      answers all texts of a file by a running service
  packbert --version

`packbert COMMAND --help` shows the options of a command.
"""


def _serve(words: Sequence[str]) -> NoReturn:
    from packbert.service.__main__ import end, main

    end(main(words))


def _export(words: Sequence[str], command: str = "export") -> int:
    from packbert.model_export.__main__ import cli

    return cli(words, command)


def _bulk(words: Sequence[str]) -> NoReturn:
    from packbert.service.__main__ import end
    from packbert.service.library.bulk_command import main

    end(main(words))


def _client(words: Sequence[str]) -> int:
    from packbert.service.library.client_command import main

    return main(words)


COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {  # the extra whose packages it needs
    "serve": ("service", _serve),
    "export": ("export", _export),
    "describe": ("export", lambda words: _export(words, "describe")),
    "download": ("export", lambda words: _export(words, "download")),
    "bulk": ("service", _bulk),
    "client": ("client", _client),
}


def main() -> int:
    """Runs the command that sys.argv names; returns the exit code."""
    name, words = (sys.argv[1] if sys.argv[1:] else ""), sys.argv[2:]
    if name == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"packbert {version('packbert')}\n")
        return 0
    if name not in COMMANDS:
        unknown = "" if name in ("", "-h", "--help") else f"packbert: there is no command {name}"
        unknown += f"{did_you_mean(name, COMMANDS)}\n\n" * bool(unknown)
        (sys.stderr if unknown else sys.stdout).write(unknown + USAGE)
        return 2 if unknown else 0
    extra, run = COMMANDS[name]
    with _packages_of(extra, f"packbert {name}"):
        return run(words)


@contextmanager
def _packages_of(extra: str, command: str) -> Iterator[None]:
    """Ends the process with one sentence if the command imports a module that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        solution = f"install packbert with the extra {extra!r}"
        sys.stderr.write(f"{command}: {error.name} is not installed here; {solution}\n")
        raise SystemExit(2) from error
