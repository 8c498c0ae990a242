"""The check of a tokenizer: it encodes a few texts in a process of its own, under limits of time and memory.

Some of these texts repeat characters that nearly match a pattern, and so show whether it takes exponential time. They
are made from the characters and escapes of the patterns (Oniguruma's syntax, Ruby) and from all of Unicode's scripts
and categories. A search, no proof: a pattern that needs characters in an order that it does not spell out is not found.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from packbert.model_export.artifact.manifest import TOKENIZER, ModelBounds

RUN_CHARACTERS = 64  # a pattern with exponential backtracking takes 2^64 steps
MAX_CHARACTERS, MAX_RUNS = 500, 2500  # of all patterns; the check stays under a second
ALWAYS = "a0é中 "
ENDS = ("!", "\ue000")  # one of them matches no pattern that is written for words
FIRST_SURROGATE, LAST = 0xD800, 0x20000  # code points above LAST have no other script or category
ESCAPES = re.compile(
    r"\\x\{([0-9A-Fa-f ]+)\}|((?:\\x[0-9A-Fa-f]{2})+)|\\u([0-9A-Fa-f]{4})|\\([0-7]{2,3})|\\([abefnrtv])"
)
CONTROLS = {"a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


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
    alphabet = list(islice(dict.fromkeys([*ALWAYS, *_of_each_property(), *stated]), MAX_CHARACTERS))
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


def _of_each_property() -> Iterable[str]:
    """A letter of each script and a character of each other general category: patterns name sets of characters so."""
    found: dict[str, str] = {}
    for one in map(chr, [*range(FIRST_SURROGATE), *range(FIRST_SURROGATE + 2048, LAST)]):
        category = unicodedata.category(one)
        found.setdefault(unicodedata.name(one, category).split()[0] if category[0] == "L" else category, one)
    return found.values()


MODULE = __name__
MEMORY_BYTES = 2 * 2**30  # address space of the check, beyond what the process has before it loads the tokenizer
CPU_SECONDS = 20
WALL_SECONDS = 300  # only for a process that waits instead of computing
MAX_GROWTH = 20  # of a text by normalizing it; Unicode's own forms expand a character to at most 18
LONG_CHARACTERS = 100_000
ORDINARY = "The quick brown fox jumps over the lazy dog; 0123456789 !\"#$%&'()*+,-./:<=>?@[]^_`{|}~ café Ωß 北京 🙂"
UNKNOWN = "\ue000 \U00012031 \U0001fbf0\U000f0000"  # private use, cuneiform, legacy computing: in no vocabulary


def why_unusable(tokenizer: Tokenizer, bounds: ModelBounds) -> str:
    """What is wrong with the tokenizer, as a sentence without subject; empty if nothing is."""
    with tempfile.TemporaryDirectory(prefix="packbert-export-") as folder:
        path = Path(folder) / TOKENIZER
        tokenizer.save(str(path), pretty=False)
        return fault_of(path, bounds)


def fault_of(path: Path, bounds: ModelBounds, *, module: str = MODULE) -> str:
    """As `why_unusable`, for a tokenizer.json; `python -m` runs `module`, which calls `check_in_child`."""
    command = [sys.executable, "-m", module, str(path), json.dumps(asdict(bounds))]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=WALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"does not answer within {WALL_SECONDS} s"
    last = (ended.stdout.decode(errors="replace").splitlines() or ["its start"])[-1]
    code = ended.returncode
    if code == 0:
        return "" if last == "ok" else last
    said = ended.stderr.decode(errors="replace").splitlines()
    said = [line for line in said if line and not line.startswith("note:")]
    why = (said or ["no message"])[-1][:300]
    if code == -signal.SIGXCPU:
        return f"takes more than {CPU_SECONDS} s of CPU time for {last}"
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    limit = f"{MEMORY_BYTES // 2**30} GiB of memory are allowed"
    return f"fails on {last} ({how}: {why}; {limit})"


def load(path: str) -> Tokenizer:
    """The tokenizer as the service opens it: special tokens in a text are text."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return tokenizer


def check_in_child(load: Callable[[str], Tokenizer]) -> None:
    """The main function of the child: prints each text that it encodes, then "ok" or the fault.

    Any exception, signal or limit is the parent's to report.
    """
    path, bounds = sys.argv[1], ModelBounds(**json.loads(sys.argv[2]))
    _limit_resources()
    _report("its file")
    fault = next(_faults(load(path), bounds, read_patterns(Path(path))), "")
    _report(fault or "ok")


PAIR = "a pair"  # in the reports


def _report(line: str) -> None:
    """To the parent, before the step that may end this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _limit_resources() -> None:
    os.putenv("RUST_BACKTRACE", "0")  # the last line on stderr is then the reason, but for a note
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    memory = pages * resource.getpagesize() + MEMORY_BYTES
    wanted = {resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: CPU_SECONDS, resource.RLIMIT_CORE: 0}
    for limit, value in wanted.items():
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _faults(tokenizer: Tokenizer, bounds: ModelBounds, patterns: list[str]) -> Iterator[str]:
    special = tokenizer.num_special_tokens_to_add(False)
    if special + 1 > bounds.max_tokens:
        yield f"adds {special} special tokens to a text, but the model takes at most {bounds.max_tokens} tokens"
    long = "word " * (LONG_CHARACTERS // 10)
    texts: Mapping[str, Iterable[tuple[str, ...]]] = {
        "an ordinary text": [(ORDINARY,)],
        PAIR: [(ORDINARY, "A second text.")],
        "an unknown text": [(UNKNOWN,)],
        "a text of its own patterns": [(f"a {' '.join(patterns)[:10_000]}",)],
        f"a text of {RUN_CHARACTERS} repeated characters and another": ((one,) for one in repeated(patterns)),
        f"a text of {LONG_CHARACTERS} characters": [(long + "a" * (LONG_CHARACTERS - len(long)),)],
    }
    for name, inputs in texts.items():
        _report(name)
        for text in inputs:
            yield from _faults_of_text(tokenizer, text, name)
            encoding = tokenizer.encode(*text)  # type: ignore[arg-type]  # one text or two
            if text == (ORDINARY,) and all(encoding.special_tokens_mask):
                yield f"gives {name} no tokens of its own"
            yield from _faults_of(encoding, name, bounds)


def _faults_of_text(tokenizer: Tokenizer, text: tuple[str, ...], name: str) -> Iterator[str]:
    """What normalizing makes of `text`, before it is encoded."""
    for side in text if tokenizer.normalizer is not None else ():
        normalized = len(tokenizer.normalizer.normalize_str(side))
        if normalized > MAX_GROWTH * (len(side) + 1):
            yield f"makes {normalized} characters of the {len(side)} of {name}; at most {MAX_GROWTH} each"


def _faults_of(encoding: Encoding, name: str, bounds: ModelBounds) -> Iterator[str]:
    ids, types = encoding.ids, encoding.type_ids
    if len(ids) != len(types):
        yield f"gives {name} {len(ids)} ids, but {len(types)} type ids"
    if max(ids, default=0) >= bounds.vocabulary:
        token = encoding.tokens[ids.index(max(ids))]
        yield f"gives {name} the id {max(ids)} ({token}), but the model has only {bounds.vocabulary} word embeddings"
    alone = bounds.segments == 1 and name == PAIR  # such a model takes single texts, and the service refuses pairs
    if bounds.segments and max(types, default=0) >= bounds.segments and not alone:
        yield f"gives {name} the type id {max(types)}, but the model has only {bounds.segments} segments"


if __name__ == "__main__":
    check_in_child(load)
