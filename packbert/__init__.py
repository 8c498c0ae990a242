"""BERT models in Python programs: `Engine` in this process, `Client` over HTTP.

The names below are loaded at their first use: the client needs neither ONNX Runtime nor the server's packages.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packbert.service.artifact import ManifestError as ManifestError
    from packbert.service.errors import DeviceError as DeviceError
    from packbert.service.errors import ServiceError as ServiceError
    from packbert.service.library.app import make_app as make_app
    from packbert.service.library.client import AsyncClient as AsyncClient
    from packbert.service.library.client import Client as Client
    from packbert.service.library.engine import Engine as Engine
    from packbert.service.library.job import RequestFailed as RequestFailed
    from packbert.service.settings import Settings as Settings
    from packbert.service.settings import SettingsError as SettingsError

MODULES = {
    "AsyncClient": "packbert.service.library.client",
    "Client": "packbert.service.library.client",
    "DeviceError": "packbert.service.errors",
    "Engine": "packbert.service.library.engine",
    "ManifestError": "packbert.service.artifact",
    "RequestFailed": "packbert.service.library.job",
    "ServiceError": "packbert.service.errors",
    "Settings": "packbert.service.settings",
    "SettingsError": "packbert.service.settings",
    "make_app": "packbert.service.library.app",
}
__all__ = [*MODULES]
# Read when ONNX Runtime is imported: without it, its Linux builds report every session to its maker.
os.putenv("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(import_module(MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("fcntl", "resource"):
            raise
        way_out = "on Windows use WSL 2 or the container image"
        raise ImportError(f"packbert.{name} needs Linux or macOS: {way_out}") from error


def __dir__() -> list[str]:
    return __all__
