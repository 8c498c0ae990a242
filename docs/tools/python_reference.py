"""The page of Python names, made from signatures and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import packbert


def public_names() -> str:
    """Markdown: a section for each name of `packbert`, with its public methods."""
    return "\n".join(line for name in packbert.__all__ for line in _section(name, getattr(packbert, name)))


def _section(name: str, thing: Any) -> Iterator[str]:
    yield f"## {name}\n"
    has_methods = name in ("Engine", "Client")
    if not inspect.isclass(thing) or has_methods:
        yield f"```text\n{_signature(name, thing)}\n```\n"
    yield f"{_words(thing)}\n"
    if inspect.isclass(thing) and has_methods:
        for method, function in sorted(_methods(thing)):
            yield f"### {name}.{method}\n\n```text\n{_signature(method, function)}\n```\n\n{_words(function)}\n"


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Those with a docstring of their own; properties, private ones and the others are for the service itself."""
    for name, one in inspect.getmembers(kind):
        if not name.startswith("_") and callable(one) and one.__doc__:
            yield name, one


def _signature(name: str, thing: Any) -> str:
    """As the source has it: types by the names that it gives them."""
    function = thing.__init__ if inspect.isclass(thing) else thing
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    given = re.sub(r"^(self|cls)(, )?", "", ast.unparse(node.args))
    returned = "" if inspect.isclass(thing) or node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{'await ' if isinstance(node, ast.AsyncFunctionDef) else ''}{name}({given}){returned}"


def _words(thing: Any) -> str:
    """Its own docstring: that of a base class is about something else. Raises TypeError without one."""
    return re.sub(r"\[(texts|tokens|dim)", r"\\[\1", inspect.cleandoc(thing.__doc__))
