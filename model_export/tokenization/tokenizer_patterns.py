"""Texts that show whether a pattern of a tokenizer takes exponential time: repeated characters that nearly match.

Reads the escapes and properties of Oniguruma's syntax (Ruby). A search, no proof: a pattern that needs characters in an
order that it does not spell out is not found.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

RUN_CHARACTERS = 64  # a pattern with exponential backtracking takes 2^64 steps
MAX_CHARACTERS, MAX_RUNS = 300, 1500  # of all patterns; the check stays under a second
ALWAYS = "a0é中 "
ENDS = ("!", "\ue000")  # one of them matches no pattern that is written for words
LAST = 0x20000  # code points above are looked up by no property
ESCAPES = re.compile(
    r"\\x\{([0-9A-Fa-f ]+)\}|((?:\\x[0-9A-Fa-f]{2})+)|\\u([0-9A-Fa-f]{4})|\\([0-7]{2,3})|\\([abefnrtv])"
)
CONTROLS = {"a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
PROPERTIES = re.compile(r"\\[pP]\{\^?(\w+)\}|\[:\^?(\w+):\]")
CATEGORIES = {  # long names of a property -> general category
    "alpha": "L",
    "letter": "L",
    "upper": "Lu",
    "lower": "Ll",
    "mark": "M",
    "digit": "Nd",
    "number": "N",
    "punct": "P",
    "punctuation": "P",
    "symbol": "S",
    "space": "Z",
    "separator": "Z",
    "cntrl": "Cc",
}
SCRIPTS = {"HAN": "CJK UNIFIED"}  # property -> how Unicode's names of its characters begin, where it is not the same


def read_patterns(path: Path) -> list[str]:
    """The patterns of a tokenizer.json, with escapes replaced by their characters."""
    found: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            pattern = value.get("pattern")
            found.extend(str(one) for one in (pattern.values() if isinstance(pattern, dict) else ()))
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(one)

    content = json.loads(path.read_text("utf-8"))
    collect([content.get("normalizer"), content.get("pre_tokenizer")])
    return [ESCAPES.sub(_unescape, one) for one in found]


def repeated(patterns: list[str]) -> list[str]:
    """Each character of the patterns many times, then another; also two neighbours, and each word of a pattern."""
    stated = "".join(patterns)[: 10 * MAX_CHARACTERS]
    of_properties = (one for names in PROPERTIES.findall(stated) for one in _members(names[0] or names[1]))
    alphabet = list(islice(dict.fromkeys([*ALWAYS, *stated, *of_properties]), MAX_CHARACTERS))
    words = [*map("".join, pairwise(stated[:MAX_CHARACTERS])), *re.findall(r"\w{3,16}", stated)]
    runs = [(one * RUN_CHARACTERS)[:RUN_CHARACTERS] + end for one in [*alphabet, *words] for end in ENDS]
    return list(islice(dict.fromkeys(runs + ["a" * RUN_CHARACTERS + one for one in alphabet]), MAX_RUNS))


def _unescape(match: re.Match[str]) -> str:
    points, utf8, short, octal, control = match.groups()
    if utf8:
        return bytes.fromhex(utf8.replace("\\x", "")).decode("utf-8", "replace")
    if control:
        return CONTROLS[control]
    numbers = [int(octal, 8)] if octal else [int(one, 16) for one in (points or short).split()]
    return "".join(chr(one) for one in numbers if one < 0x110000 and not 0xD800 <= one < 0xE000)


def _members(name: str) -> Iterator[str]:
    """A few characters with the property `name`: a general category, a script or a block."""
    category = CATEGORIES.get(name.lower(), name if len(name) <= 2 else "")
    begin = name.upper().removeprefix("IN").replace("_", " ")
    begin = SCRIPTS.get(begin, begin)
    every = map(chr, range(LAST))
    if category:
        return islice((one for one in every if unicodedata.category(one).startswith(category)), 3)
    return islice((one for one in every if unicodedata.name(one, "").startswith(begin)), 3)
