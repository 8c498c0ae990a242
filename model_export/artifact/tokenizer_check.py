"""Checks that a tokenizer fits its model: encodes a few texts in a process of its own, under limits.

A tokenizer.json is a program: its patterns may take exponential time or memory, and a fault in it may panic, which ends
the encoding of every text. So the check runs in a child process. Standard library only: the child's module imports the
tokenizers library and passes its loader to `check_in_child`.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEMORY_BYTES = 2 * 2**30  # address space of the check, beyond what the process has before it loads the tokenizer
CPU_SECONDS = 20
WALL_SECONDS = 300  # only for a process that waits instead of computing
MAX_GROWTH = 20  # of a text by normalizing it; Unicode's own forms expand a character to at most 18
LONG_CHARACTERS = 100_000
RUN_CHARACTERS = 64  # of one character: a pattern with exponential backtracking takes 2^64 steps
ORDINARY = "The quick brown fox jumps over the lazy dog; 0123456789 !\"#$%&'()*+,-./:<=>?@[]^_`{|}~ café Ωß 北京 🙂"
UNKNOWN = "\ue000 \U00012031 \U0001fbf0\U000f0000"  # private use, cuneiform, legacy computing: in no vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a tokenizer must keep to."""

    vocabulary: int  # rows of the table of word embeddings
    segments: int  # rows of the segment table; 0 if the model reads no types
    max_tokens: int  # per sequence, special tokens included


class TokenizerCheck:
    """A check that runs beside other work, from its creation until `fault`."""

    def __init__(self, module: str, tokenizer: Path, limits: ModelLimits) -> None:
        """`module` is run by `python -m` and calls `check_in_child`; `tokenizer` is a tokenizer.json."""
        command = [sys.executable, "-m", module, str(tokenizer), json.dumps(asdict(limits))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def fault(self) -> str:
        """Waits for the check; what is wrong with the tokenizer, as a sentence without subject, empty if nothing is."""
        try:
            output, errors = self._process.communicate(timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return f"does not answer within {WALL_SECONDS} s"
        last = (output.decode(errors="replace").splitlines() or ["its start"])[-1]
        code = self._process.returncode
        if code == 0:
            return "" if last == "ok" else last
        said = [line for line in errors.decode(errors="replace").splitlines() if line and not line.startswith("note:")]
        why = (said or ["no message"])[-1][:300]
        if code == -signal.SIGXCPU:
            return f"takes more than {CPU_SECONDS} s of CPU time for {last}"
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        limit = f"{MEMORY_BYTES // 2**30} GiB of memory are allowed"
        return f"fails on {last} ({ended}: {why}; {limit})"


def check_in_child(load: Callable[[str], Any]) -> None:
    """The main function of the child: prints each text that it encodes, then "ok" or the fault.

    `load` returns a `tokenizers.Tokenizer` for a path. Any exception, signal or limit is the parent's to report.
    """
    path, limits = sys.argv[1], ModelLimits(**json.loads(sys.argv[2]))
    _limit_resources()
    _report("its file")
    tokenizer = load(path)
    fault = next(_faults(tokenizer, limits, _literals(path)), "")
    _report(fault or "ok")


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


def _faults(tokenizer: Any, limits: ModelLimits, literals: str) -> Iterator[str]:
    special = tokenizer.num_special_tokens_to_add(False)
    if special + 1 > limits.max_tokens:
        yield f"adds {special} special tokens to a text, but the model takes at most {limits.max_tokens} tokens"
    runs = " ".join(f"{one * RUN_CHARACTERS}!" for one in dict.fromkeys("a0é中" + literals[:200]))
    long = "word " * (LONG_CHARACTERS // 10)
    texts: Mapping[str, tuple[str, ...]] = {
        "an ordinary text": (ORDINARY,),
        "a pair": (ORDINARY, "A second text."),
        "an unknown text": (UNKNOWN,),
        "a text of its own patterns": (f"a {literals}",),
        f"a text of {RUN_CHARACTERS} equal characters and another": (runs,),
        f"a text of {LONG_CHARACTERS} characters": (long + "a" * (LONG_CHARACTERS - len(long)),),
    }
    for name, text in texts.items():
        _report(name)
        for side in text:
            normalized = len(tokenizer.normalizer.normalize_str(side)) if tokenizer.normalizer is not None else 0
            if normalized > MAX_GROWTH * (len(side) + 1):
                yield f"makes {normalized} characters of the {len(side)} of {name}; at most {MAX_GROWTH} each"
        encoding = tokenizer.encode(*text)
        if len(text) == 1 and text[0] == ORDINARY and all(encoding.special_tokens_mask):
            yield f"gives {name} no tokens of its own"
        yield from _faults_of(encoding, name, limits)


def _faults_of(encoding: Any, name: str, limits: ModelLimits) -> Iterator[str]:
    ids, types = encoding.ids, encoding.type_ids
    if len(ids) != len(types):
        yield f"gives {name} {len(ids)} ids, but {len(types)} type ids"
    if max(ids, default=0) >= limits.vocabulary:
        token = encoding.tokens[ids.index(max(ids))]
        yield f"gives {name} the id {max(ids)} ({token}), but the model has only {limits.vocabulary} word embeddings"
    if limits.segments and max(types, default=0) >= limits.segments:
        yield f"gives {name} the type id {max(types)}, but the model has only {limits.segments} segments"


def _literals(path: str) -> str:
    """The characters of the file's patterns, which an ordinary text may lack."""
    found: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, list):
            for one in value:
                collect(one)
        elif isinstance(value, dict):
            pattern = value.get("pattern")
            found.extend(str(one) for one in (pattern.values() if isinstance(pattern, dict) else ()))
            for one in value.values():
                collect(one)

    content = json.loads(Path(path).read_text("utf-8"))
    collect([content.get("normalizer"), content.get("pre_tokenizer")])
    return " ".join(found)[:10_000]
