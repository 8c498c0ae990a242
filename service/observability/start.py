"""Whether this process makes traces. Imports OpenTelemetry only if it does."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..settings import Settings, SettingsError

if TYPE_CHECKING:
    from .spans import Tracing

PACKAGES = {  # by a module of theirs
    "opentelemetry.sdk.trace": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}


def check_packages(settings: Settings) -> None:
    """Raises SettingsError if traces are asked for and a package is missing; imports none of them."""
    if settings.tracing and (missing := [package for module, package in PACKAGES.items() if not _is_installed(module)]):
        raise SettingsError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need {', '.join(missing)}: "
            "install packbert[otel], or unset the variable"
        )


def start_tracing(settings: Settings) -> "Tracing | None":
    """What makes and sends spans in this process; None if traces are off."""
    if not settings.tracing:
        return None
    from .spans import Tracing  # a service without traces loads nothing of OpenTelemetry

    return Tracing()


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
