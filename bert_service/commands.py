"""The commands of the distribution, which have the same names in a checkout and where it is installed.

Each has the packages of an extra; where one of them is missing, the exit code is 2.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


def serve() -> NoReturn:
    """bert-service"""
    with _packages_of("service", "bert-service"):
        from service.__main__ import run

        run()


def export() -> NoReturn:
    """bert-export"""
    with _packages_of("export", "bert-export"):
        from model_export.__main__ import cli

        raise SystemExit(cli())


def client() -> NoReturn:
    """bert-client"""
    with _packages_of("client", "bert-client"):
        from service.client.__main__ import main

        raise SystemExit(main())


@contextmanager
def _packages_of(extra: str, command: str) -> Iterator[None]:
    """Ends the process with one sentence where the command imports a module that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        solution = f"pip install 'bert-service[{extra}]'"
        sys.stderr.write(f"{command}: {error.name} is not installed here; {solution}\n")
        raise SystemExit(2) from error
