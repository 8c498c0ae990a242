"""The table of settings, the environment of docker-compose.yml and the settings that the Helm chart takes, all made
from `Settings`.
"""

import json
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from docs.tools.marks import markdown_table
from packbert.service.flags import GROUPS
from packbert.service.settings import PREFIX, Settings
from tests.paths import ROOT

COMPOSE = ROOT / "docker-compose.yml"
BEGIN, END = "  # settings: written by `make pages`; without a value: the shell's, if it has one\n", "  # /settings\n"
CHART_SCHEMA = ROOT / "deploy" / "helm" / "packbert" / "values.schema.json"
COLUMNS = ("variable", "default", "allowed", "what it sets")
NOT_PASSED = ("model", "models", "precision", "cache", "host", "port")  # the container has its own
# The chart has values for these, and takes no key in clear text.
OF_CHART = {
    *("device", "workers", "admin_port", "linger_seconds", "drain_seconds"),
    *("api_key", "api_key_file", "admin_key"),
}


def settings_table() -> str:
    """Markdown: a heading for each group of flags, and under it a row for each setting."""
    parts = []
    for title, names in GROUPS.items():
        rows = [_row(name, Settings.model_fields[name]) for name in names]
        parts.append(f"## {title.capitalize()}\n\n{markdown_table(COLUMNS, *rows)}")
    return "\n".join(parts)


def compose_environment() -> str:
    """YAML, one line for each setting that the container takes from the shell."""
    return "".join(f"  {_variable(name)}:\n" for name in Settings.model_fields if name not in NOT_PASSED)


def rewrite_compose(compose: str) -> str:
    """Raises ValueError where a mark is missing."""
    before, rest = compose.split(BEGIN)
    return f"{before}{BEGIN}{compose_environment()}{END}{rest.split(END)[1]}"


def rewrite_chart(schema: str) -> str:
    """The chart's schema with the names that its value `settings` takes: those that no other value sets."""
    content: dict[str, Any] = json.loads(schema)
    names = [_variable(name) for name in Settings.model_fields if name not in OF_CHART | set(NOT_PASSED)]
    content["properties"]["settings"]["propertyNames"] = {"enum": names}
    return json.dumps(content, indent=2) + "\n"


def _row(name: str, field: FieldInfo) -> tuple[str, ...]:
    assert field.description, f"{name} has no description"
    return f"`{_variable(name)}`", _default(field), _allowed(field), field.description


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "unset"
    return f"`{_plain(field.default)}`" if field.default != "" else "empty"


def _allowed(field: FieldInfo) -> str:
    """The values of a choice, or the bounds of a number."""
    kind = get_args(field.annotation)[0] if field.default is None else field.annotation  # without None
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if kind is bool:
        return "`true`, `false`"
    bounds = {type(bound).__name__.lower(): getattr(bound, type(bound).__name__.lower()) for bound in field.metadata}
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']}"
    if "ge" in bounds:
        return f"{_plain(bounds['ge'])} or more"
    return f"more than {bounds['gt']}" if "gt" in bounds else ""


def _plain(value: Any) -> str:
    return str(value).lower().removesuffix(".0")


def write_files() -> None:
    """Writes docker-compose.yml and the chart's schema."""
    COMPOSE.write_text(rewrite_compose(COMPOSE.read_text("utf-8")), "utf-8")
    CHART_SCHEMA.write_text(rewrite_chart(CHART_SCHEMA.read_text("utf-8")), "utf-8")
