"""The check of a tokenizer: it encodes a few texts in a process of its own, under limits of time and memory."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from .artifact.lifeline import end_with
from .artifact.manifest import TOKENIZER

MEMORY_BYTES = 2 * 2**30  # address space of the check, beyond what the process has before it loads the tokenizer
CPU_SECONDS = 20
WALL_SECONDS = 300  # only for a process that waits instead of computing
MAX_GROWTH = 20  # of a text by normalizing it; Unicode's own forms expand a character to at most 18
LONG_CHARACTERS = 100_000
ORDINARY = "The quick brown fox jumps over the lazy dog; 0123456789 !\"#$%&'()*+,-./:<=>?@[]^_`{|}~ café Ωß 北京 🙂"
UNKNOWN = "\ue000 \U00012031 \U0001fbf0\U000f0000"  # private use, cuneiform, legacy computing: in no vocabulary
PAIR = "a pair"  # in the reports


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBounds:
    """What a model accepts in a sequence."""

    vocabulary: int  # rows of the table of word embeddings
    segments: int  # rows of the segment table; 0 if the model reads no types
    max_tokens: int  # per sequence, special tokens included


def why_unusable(tokenizer: Tokenizer, bounds: ModelBounds) -> str:
    """What is wrong with the tokenizer, as a sentence without subject; empty if nothing is."""
    with tempfile.TemporaryDirectory(prefix="packbert-export-") as folder:
        path = Path(folder) / TOKENIZER
        tokenizer.save(str(path), pretty=False)
        return fault_of(path, bounds)


def fault_of(path: Path, bounds: ModelBounds, *, module: str = __name__) -> str:
    """`why_unusable` of a tokenizer.json; `python -m` runs `module`, which calls `check_in_child`."""
    command = [sys.executable, "-m", module, str(path), json.dumps(asdict(bounds)), str(os.getpid())]
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


def patterns_of(path: Path) -> str:
    """The patterns of a tokenizer.json, as a text."""
    found: list[str] = []

    def note(fields: dict[str, Any]) -> dict[str, Any]:
        if isinstance(pattern := fields.get("pattern"), dict):
            found.extend(map(str, pattern.values()))
        return fields

    json.loads(path.read_text("utf-8"), object_hook=note)
    return " ".join(found)


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
    end_with(int(sys.argv[3]))
    _limit_resources()
    _report("its file")
    fault = next(_faults(load(path), bounds, patterns_of(Path(path))), "")
    _report(fault or "ok")


def _report(line: str) -> None:
    """Tells the parent `line`, before the step that may end this process."""
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


def _faults(tokenizer: Tokenizer, bounds: ModelBounds, patterns: str) -> Iterator[str]:
    special = tokenizer.num_special_tokens_to_add(False)
    if special + 1 > bounds.max_tokens:
        yield f"adds {special} special tokens to a text, but the model takes at most {bounds.max_tokens} tokens"
    long = "word " * (LONG_CHARACTERS // 10)
    texts = {
        "an ordinary text": (ORDINARY,),
        PAIR: (ORDINARY, "A second text."),
        "an unknown text": (UNKNOWN,),
        "a text of its own patterns": (f"a {patterns[:10_000]}",),
        f"a text of {LONG_CHARACTERS} characters": (long + "a" * (LONG_CHARACTERS - len(long)),),
    }
    for name, text in texts.items():
        _report(name)
        for side in text if tokenizer.normalizer is not None else ():
            normalized = len(tokenizer.normalizer.normalize_str(side))
            if normalized > MAX_GROWTH * (len(side) + 1):
                yield f"makes {normalized} characters of the {len(side)} of {name}; at most {MAX_GROWTH} each"
        encoding = tokenizer.encode(*text)  # type: ignore[arg-type]  # one text or two
        if text == (ORDINARY,) and all(encoding.special_tokens_mask):
            yield f"gives {name} no tokens of its own"
        yield from _faults_of(encoding, name, bounds)


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
