"""The page of Python names, made from signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator

import packbert


def public_names() -> str:
    """Markdown: a section for each name of `packbert`, with its public methods."""
    return "\n".join(line for name in packbert.__all__ for line in _section(name, getattr(packbert, name)))


def _section(name: str, thing: object) -> Iterator[str]:
    yield f"## {name}\n"
    has_methods = name in ("Engine", "Client")
    if not inspect.isclass(thing) or has_methods:
        yield f"```text\n{_signature(name, thing)}\n```\n"
    yield f"{_words(thing)}\n"
    if inspect.isclass(thing) and has_methods:
        for method, function in sorted(_methods(thing)):
            yield f"### {name}.{method}\n\n```text\n{_signature(method, function)}\n```\n\n{_words(function)}\n"


def _methods(kind: type) -> Iterator[tuple[str, object]]:
    """Those with a docstring; properties and private ones are for the service itself."""
    for name, one in inspect.getmembers(kind):
        if not name.startswith("_") and callable(one) and inspect.getdoc(one):
            yield name, one


def _signature(name: str, thing: object) -> str:
    """Without the modules of types."""
    text = re.sub(r"(?:[A-Za-z_]\w*\.)+(\w+)", r"\1", str(inspect.signature(thing)))  # type: ignore[arg-type]
    text = re.sub(r"'(\w+)'", r"\1", text).replace("self, ", "").replace("(self)", "()")
    return f"{'await ' if inspect.iscoroutinefunction(thing) else ''}{name}{text}"


def _words(thing: object) -> str:
    """Its own docstring: that of a base class is about something else."""
    own = thing.__doc__ or "The [settings](settings.md) as a frozen object."
    return inspect.cleandoc(own).replace("[texts", "\\[texts").replace("[tokens", "\\[tokens").replace("[dim", "\\[dim")
