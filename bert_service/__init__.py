"""BERT models in Python programs: `Engine` in this process, `Client` over HTTP.

Once installed, all of the distribution lies below this package, so that it takes no other name. The names below are
loaded at their first use: the client needs neither ONNX Runtime nor the server's packages.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.artifact import ManifestError
    from service.client import Client, RequestFailed
    from service.errors import DeviceError, ServiceError
    from service.library.application import make_app
    from service.library.engine import Engine
    from service.settings import Settings, SettingsError

__all__ = [
    "Client",
    "DeviceError",
    "Engine",
    "ManifestError",
    "RequestFailed",
    "ServiceError",
    "Settings",
    "SettingsError",
    "make_app",
]
MODULES = {  # of each name, below the package that holds `service`
    "Client": "client",
    "DeviceError": "errors",
    "Engine": "library.engine",
    "ManifestError": "artifact",
    "RequestFailed": "client",
    "ServiceError": "errors",
    "Settings": "settings",
    "SettingsError": "settings",
    "make_app": "library.application",
}


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from service import __name__ as package

    return getattr(import_module(f"{package}.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
