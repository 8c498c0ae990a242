"""The requests on the pages, and the answers that are printed under them.

A request is a line `$ curl localhost:8080/...` of a page; where an answer is printed, it is the next line, with numbers
rounded and the end cut off. `<!-- model NAME -->` names the model for the requests after it: a folder of tests/golden,
or `reviews`, the classifier that examples/train_classifier.py makes. Before the first such mark it is the bundled one.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

REQUEST = re.compile(r"^\$ (curl localhost:8080\S* ?.*)$")
MODEL = re.compile(r"^<!-- model ([\w+/-]+) -->$")
ANSWER = re.compile(r"^[\[{]")
DECIMAL = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
REQUEST_ID = re.compile(r'("request_id":")[0-9a-f]+')
BUNDLED = "sample"
CUT, MAX_SHOWN = " ...", 220  # characters of an answer
ALLOWED_DIFFERENCE = 1e-3  # other processors round differently


@dataclass(frozen=True, slots=True)
class Request:
    page: Path
    line: int  # of the command, from 0
    model: str
    command: str
    answer: str | None  # as printed


def requests_of(page: Path) -> Iterator[Request]:
    lines, model = page.read_text("utf-8").splitlines(), BUNDLED
    for number, line in enumerate(lines):
        if marked := MODEL.match(line):
            model = marked[1]
        elif found := REQUEST.match(line):
            following = lines[number + 1] if number + 1 < len(lines) else ""
            yield Request(page, number, model, found[1], following if ANSWER.match(following) else None)


def send(request: Request, client: httpx.Client) -> httpx.Response:
    """Runs the curl command: its URL, and the options -d and -H."""
    _, url, *options = shlex.split(request.command)
    given: dict[str, str] = {}
    headers: dict[str, str] = {}
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option == "-H":
            name, _, content = value.partition(":")
            headers[name] = content.strip()
        else:
            given[option] = value
    unknown = set(given) - {"-d"}
    if unknown:
        raise ValueError(f"{request.page.name}: {request.command}: only -d and -H are known, not {sorted(unknown)}")
    path = url.removeprefix("localhost:8080") or "/"
    return client.request("POST" if given else "GET", path, content=given.get("-d"), headers=headers)


def shown(text: str) -> str:
    """An answer as it is printed."""
    rounded = REQUEST_ID.sub(r"\g<1>da593d17d1f646e3", DECIMAL.sub(lambda one: f"{float(one[0]):.4g}", text))
    return rounded if len(rounded) <= MAX_SHOWN else rounded[:MAX_SHOWN].rpartition(",")[0] + CUT


def same(found: str, printed: str) -> bool:
    """Whether a printed answer, perhaps cut, is the beginning of `found`, but for the rounding of numbers."""
    whole = REQUEST_ID.sub(r"\g<1>da593d17d1f646e3", found)
    begin = printed.removesuffix(CUT)
    is_cut = begin != printed
    number = re.compile(r"(?<![\w\"#])(-?\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w\"])")
    left, right = number.split(whole), number.split(begin)
    if len(left) < len(right) or (len(left) > len(right) and not is_cut):
        return False
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if place % 2:
            if abs(float(one) - float(other)) > ALLOWED_DIFFERENCE * max(1.0, abs(float(other))):
                return False
        elif not (one == other or (is_cut and place == len(right) - 1 and one.startswith(other))):
            return False
    return True


def rewrite(page: Path, client_of: Callable[[str], httpx.Client]) -> None:
    """Puts today's answers in the place of those that are printed on the page."""
    lines = page.read_text("utf-8").splitlines(keepends=True)
    for request in requests_of(page):
        if request.answer is not None:
            lines[request.line + 1] = shown(send(request, client_of(request.model)).text) + "\n"
    page.write_text("".join(lines), "utf-8")
