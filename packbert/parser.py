"""The argument parser of every command: arguments in groups, examples at the end, errors in one sentence."""

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from textwrap import fill
from typing import Any, NoReturn

WIDTH = 100


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Names the value of an option once, as Python 3.13 does, in all versions."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """Errors end the process with exit code 2."""

    def __init__(self, command: str, arguments: str, about: str, examples: Sequence[str], note: str = "") -> None:
        shown = "examples:\n" + "".join(f"  {one}\n" for one in examples)
        super().__init__(
            prog=command,
            usage=f"{command} {arguments}",
            description=fill(about, WIDTH),
            epilog="\n\n".join(filter(None, (fill(note, WIDTH), shown))),
            formatter_class=HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self._flags: list[str] = []
        self._titles: dict[str, Any] = {}

    def add(self, title: str, *names: str, **options: Any) -> None:
        """An argument of the group `title`."""
        if title not in self._titles:
            self._titles[title] = self.add_argument_group(title)
        self._titles[title].add_argument(*names, **options)
        self._flags += names

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The arguments; an unknown one is an error that names the nearest flag."""
        self.add("help", "-h", "--help", action="help", help="show this text")
        for word in takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if word.startswith("--") and " " not in word and name not in self._flags:
                self.error(f"there is no flag {name}{did_you_mean(name, self._flags)}")
        given, more = self.parse_known_args(words)
        if more:
            self.error(f"there is no place for the argument {more[0]} in `{self.usage}`")
        return given

    def error(self, message: str) -> NoReturn:
        """In place of argparse's, which shows the usage of all flags first."""
        way_out = "" if "did you mean" in message else f"; `{self.prog} --help` shows all arguments"
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}{way_out}\n")


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """A question with the known name that is spelled most alike, but for the prefix of all; empty if none is."""
    near = difflib.get_close_matches(name.removeprefix(prefix), [one.removeprefix(prefix) for one in known], n=1)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""


def one_of(*values: str) -> Callable[[str], str]:
    """The type of an argument that has one of `values`."""

    def read(text: str) -> str:
        if text not in values:
            raise argparse.ArgumentTypeError(f"{text} is not one of {', '.join(values)}")
        return text

    return read


def whole_number(text: str) -> int:
    """The type of an argument that is 1 or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """The type of an argument that is 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds, 0 or more")
    return value
