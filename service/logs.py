"""The format of all log lines of a process, and the access log. Knows no request: it gets the fields of a line."""

import logging
from typing import Any

from pythonjsonlogger.orjson import OrjsonFormatter

from service.settings import Settings
from service.tracing.context import current_trace_id

ACCESS = logging.getLogger("service.access")
NAMES = {"levelname": "level", "name": "logger"}  # of a record's attributes in JSON
Fields = dict[str, str | int | float]


class TextFormatter(logging.Formatter):
    """Time, level, the name of a child process, logger, message; the fields of an access line as key=value."""

    def __init__(self, process: str) -> None:
        super().__init__(" ".join(filter(None, ("%(asctime)s %(levelname)s", process, "%(name)s %(message)s"))))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides a method of logging
        fields: Fields = getattr(record, "fields", {})
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])


class JsonFormatter(OrjsonFormatter):
    """One JSON object a line, a traceback included. The time is ISO 8601 in UTC."""

    def __init__(self, process: str) -> None:
        static = {"process": process} if process else {}
        shown = ["levelname", "name", "message"]
        super().__init__(shown, rename_fields=NAMES, static_fields=static, timestamp="time")

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data.update(log_data.pop("fields", {}))


def add_trace_id(record: logging.LogRecord) -> bool:
    """A filter that drops nothing: lines that a request causes get the id of its trace as a field."""
    if trace_id := current_trace_id():
        record.fields = {**getattr(record, "fields", {}), "trace_id": trace_id}
    return True


def configure_logging(settings: Settings, *, process: str = "") -> None:
    """Writes the lines of every logger to stderr in the format of the settings. `process` names a child process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(process) if settings.log_format == "json" else TextFormatter(process))
    if settings.tracing:
        handler.addFilter(add_trace_id)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    ACCESS.setLevel(logging.INFO if settings.access_log else logging.CRITICAL)


def log_access(**fields: str | int | float) -> None:
    """One line of the access log. Neither a text nor a key may be a field."""
    ACCESS.info("request", extra={"fields": fields})
