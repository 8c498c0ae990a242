"""The commands of the distribution, which have the same names in a checkout and where it is installed."""

from typing import NoReturn


def serve() -> NoReturn:
    """bert-service"""
    from service.__main__ import run

    run()


def export() -> NoReturn:
    """bert-export"""
    from model_export.__main__ import cli

    raise SystemExit(cli())


def client() -> NoReturn:
    """bert-client"""
    from service.client.__main__ import main

    raise SystemExit(main())
