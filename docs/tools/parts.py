"""The parts of pages by name, as the marks on the pages have them."""

from collections.abc import Callable, Mapping
from typing import Any

from docs.tools import card
from docs.tools.alerts import alerts_table
from docs.tools.commands_reference import commands
from docs.tools.http_reference import errors, get_routes, task_routes
from docs.tools.metrics import metrics_table
from docs.tools.python_reference import public_names
from docs.tools.settings import settings_table


def parts_of(document: Callable[[], Mapping[str, Any]], families: Callable[[], str]) -> dict[str, Callable[[], str]]:
    """`document` gives the OpenAPI document of a service, `families` their table: both take seconds."""
    return {
        "settings": settings_table,
        "metrics": metrics_table,
        "alerts": alerts_table,
        "families": families,
        "commands": commands,
        "python": public_names,
        "task-routes": lambda: task_routes(document()),
        "get-routes": lambda: get_routes(document()),
        "errors": lambda: errors(document()),
        "card-shape": card.shape,
        "card-figures": card.figures,
        "card-everyday-en": lambda: card.everyday("en"),
        "card-everyday-zh": lambda: card.everyday("zh"),
    }
