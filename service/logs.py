"""The format of all log lines of a process, and the access log."""

import logging
from typing import Any

from pythonjsonlogger.orjson import OrjsonFormatter

from .settings import Settings
from .turns import current_trace_id

ACCESS = logging.getLogger("service.access")
NAMES = {"levelname": "level", "name": "logger"}  # of a record's attributes in JSON
INDENT = "    "  # of a traceback's lines, so that none of them looks like a record
Fields = dict[str, str | int | float]


class TextFormatter(logging.Formatter):
    """Time, level, the name of a child process, logger, message; the fields of an access line as key=value.

    What a client sent may be in any part of a record: it can neither begin a line nor control a terminal.
    """

    def __init__(self, process: str) -> None:
        super().__init__(" ".join(filter(None, ("%(asctime)s %(levelname)s", process, "%(name)s %(message)s"))))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides a method of logging
        fields: Fields = getattr(record, "fields", {})
        shown = (f"{name}={_quoted(str(value))}" for name, value in fields.items())
        return escaped(" ".join([super().formatMessage(record), *shown]))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - as above
        return _indented(super().formatStack(stack_info))


class JsonFormatter(OrjsonFormatter):
    """One JSON object a line, a traceback included. The time is ISO 8601 in UTC."""

    def __init__(self, process: str) -> None:
        static = {"process": process} if process else {}
        shown = "%(levelname)s %(name)s %(message)s"
        super().__init__(shown, rename_fields=NAMES, static_fields=static, timestamp="time")

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data.update(log_data.pop("fields", {}))


def escaped(line: str) -> str:
    """The line with its control characters, and all others that show nothing, as Python writes them."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def _indented(traceback: str) -> str:
    return "\n".join(INDENT + escaped(line) for line in traceback.split("\n"))


def _quoted(value: str) -> str:
    """A value that holds white space or a quote, in quotes: no value can look like another field."""
    return f'"{value.replace(chr(34), chr(92) + chr(34))}"' if {" ", '"', "="} & {*value} else value


def add_trace_id(record: logging.LogRecord) -> bool:
    """A filter that drops nothing: lines that a request causes get the id of its trace as a field."""
    if trace_id := current_trace_id():
        record.fields = {**getattr(record, "fields", {}), "trace_id": trace_id}
    return True


class OnceAMinute(logging.Filter):
    """Passes the first line of a minute of a logger and those below it, and all lines of other loggers.

    The exporter of spans writes one or more lines for each batch while the collector does not answer.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._last = -60.0  # seconds of the epoch

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):
            return True
        if 0 <= record.created - self._last < 60:
            return False
        self._last = record.created
        return True


def configure_logging(settings: Settings, *, process: str = "") -> None:
    """Writes the lines of every logger to stderr in the format of the settings. `process` names a child process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(process) if settings.log_format == "json" else TextFormatter(process))
    if settings.tracing:
        handler.addFilter(add_trace_id)
        handler.addFilter(OnceAMinute("opentelemetry"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    ACCESS.setLevel(logging.INFO if settings.access_log else logging.CRITICAL)


def log_access(**fields: str | int | float) -> None:
    """One line of the access log. Neither a text nor a key may be a field."""
    ACCESS.info("request", extra={"fields": fields})
