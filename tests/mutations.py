"""Do the tests notice? Changes one place of the source at a time, in a copy, and runs the tests that should fail.

    python -m tests.mutations [WORD ...]

Words select the rows whose file or text has one of them. The result is 1 where a mutant survives that no row calls
equivalent, or where a row does not fit the source any more. A row names the tests of its module; each is run up to its
first failure.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "artifacts", "build", "*.egg-info", "docs", "deploy")
TIMEOUT_SECONDS = 900  # a mutant that hangs is killed


class Mutation(NamedTuple):
    old: str  # occurs once in the file
    new: str
    equivalent: str = ""  # why no test can notice it


class Target(NamedTuple):
    file: str
    tests: str
    mutations: Sequence[Mutation]


M = Mutation
TARGETS = (
    Target(
        "model_export/artifact/batch.py",
        "tests/artifact/test_batch.py",
        (
            M('"k": np.array([max([s.top_k', '"k": np.array([min([s.top_k'),
            M("dtype=np.int32) - np.repeat(starts, lengths),", "dtype=np.int32),"),
            M("starts = np.cumsum(lengths, dtype=np.int32) - lengths", "starts = np.cumsum(lengths, dtype=np.int32)"),
            M(
                "flat = np.concatenate(selected) + np.repeat(starts, [len(rows) for rows in selected])",
                "flat = np.concatenate(selected)",
            ),
            M("if not tokens.masks and SEQUENCE in kinds and", "if SEQUENCE in kinds and"),
            M('ends = {"cls": tokens.pooled_from,', 'ends = {"cls": 0,'),
            M("sequences[i].pooled_from if kind == SENTENCE else 0 for i", "sequences[i].pooled_from for i"),
            M("[len(index[MASK])] * len(tokens.targets)", "[0] * len(tokens.targets)"),
            M("index[MASK].append(base + offset)", "index[MASK].append(offset)"),
            M("slices.append(slice(start, len(index[kind])))", "slices.append(slice(start, None))"),
            M('tokens.outputs != {"layer_cls"}', 'tokens.outputs == {"layer_cls"}'),
            M("slots=slots, owners", "slots=int(lengths.sum()), owners"),
        ),
    ),
    Target(
        "model_export/artifact/rows.py",
        "tests/artifact/test_batch.py",
        (
            M("\nALIGNMENT = 16", "\nALIGNMENT = 8"),
            M("BF16_ALIGNMENT = 32", "BF16_ALIGNMENT = 16"),
            M("K_BLOCK = 128", "K_BLOCK = 256"),
            M("if start % K_BLOCK + length > K_BLOCK:", "if start % K_BLOCK + length > K_BLOCK + 1:"),
            M("start = -(-start // block) * block", "start = -(-start // K_BLOCK) * K_BLOCK"),
            M("key=lengths.__getitem__, reverse=True", "key=lengths.__getitem__"),
            M("if start + lengths[i] <= row_length:", "if start + lengths[i] < row_length:"),
            M(
                "1, alignment) >= row_length:",
                "1, alignment) > row_length:",
                "a row that is full is looked at again, and nothing fits into it",
            ),
        ),
    ),
    Target(
        "service/scheduling/request.py",
        "tests/service/scheduling/test_chunks.py tests/service/scheduling/test_queue.py "
        "tests/service/scheduling/test_several_models.py",
        (
            M("max(1, round(tokens * self.scale))", "round(tokens * self.scale)"),
            M("self.held = min(self.tokens, self.model.window)", "self.held = self.tokens"),
            M("        self.sent += count\n", ""),
            M("        if self.error is None:\n", "        if True:\n"),
            M("() if self.aside else self.chunks", "self.chunks"),
        ),
    ),
    Target(
        "service/engine/runner.py",
        "tests/service/engine/test_runner.py",
        (
            M("if lowest < 0 or highest >= limit:", "if lowest < 0 or highest > limit:"),
            M("if lowest < 0 or highest >= limit:", "if highest >= limit:"),
            M('if batch.feeds["target_pairs"].size:', "if False:"),
        ),
    ),
    Target(
        "service/tokenization/chunks.py",
        "tests/service/tokenization/test_chunks.py tests/service/tokenization/test_turns.py",
        (
            M("(end == first or cost + sizes[end] <= CHUNK_CHARACTERS)", "True"),
            M("cost += sizes[end] + TEXT_COST * sequences_per_text", "cost += sizes[end]"),
            M("return max(1, round(self.made_tokens", "return max(0, round(self.made_tokens"),
            M(
                'size = f"more than {len(encoding) - 1}"',
                'size = f"more than {len(encoding)}"',
                "the word after the beginning has a token, but where a tokenizer drops what it does not know",
            ),
            M('self.word_ends and self.truncate != "left" and', "self.word_ends and"),
            M("len(encoding) > self.limit and _keeps_longer(text, encoding):", "len(encoding) > self.limit:"),
            M("return same and all(words[size - 1] != words[size] for size in sizes)", "return same"),
            M("if not any(map(pattern.search, added)) and _are", "if _are"),
        ),
    ),
    Target(
        "service/tokenization/windows.py",
        "tests/service/tokenization/test_windows.py",
        (
            M("if self.stride >= room:", "if self.stride > room:"),
            M("(size - self.stride for size in own[1:])", "(size for size in own[1:])"),
            M("int(own[0]) + self.prompt, int(own[-1]) + 1", "int(own[0]), int(own[-1]) + 1"),
            M("if self.windows > self.most:", "if self.windows > self.most + 1:"),
            M("len(encoding) > self.limit:", "len(encoding) >= self.limit:"),
            M("if expected > COUNT_MARGIN * self.most:", "if False:"),
        ),
    ),
    Target(
        "service/tokenization/pairs.py",
        "tests/service/tokenization/test_hypotheses.py",
        (
            M('kept = ids[-room:] if self.truncate == "left" else ids[:room]', "kept = ids[:room]"),
            M("tokens > (room := min(self.rooms)):", "tokens > (room := max(self.rooms)):"),
            M("if (least := min(self.rooms)) < 1:", "if (least := min(self.rooms)) < 0:"),
            M("truncated=number == 0 and tokens", "truncated=tokens"),
        ),
    ),
    Target(
        "service/observability/cells.py",
        "tests/service/test_metrics.py",
        (
            M("self.values[at] = 0.0", "pass"),
            M("+= values[first + number]", "= values[first + number]"),
            M("        self.read_labels(path)\n", ""),
            M(
                "return first, series.bounds, first + series.size - 1",
                "return first, series.bounds, first + series.size",
            ),
        ),
    ),
    Target(
        "service/tasks/joint.py",
        "tests/service/tasks/test_joint.py tests/service/tasks/test_flow.py",
        (
            M("found.setdefault(filled.pieces, filled)", "found[filled.pieces] = filled"),
            M("best = int(logs[:, 0].argmax())", "best = int(logs[:, 0].argmin())"),
            M("np.minimum(logs[best], 0.0)", "logs[best]"),
            M("1 + beam * (len(text.masks) - 1)", "1 + beam * len(text.masks)"),
            M("if len(found) == self.beam:", "if len(found) == self.beam - 1:"),
            M("top_k = min(default_top_k, beam)", "top_k = default_top_k"),
            M("position == positions[mask - 1] + 1:", "position >= positions[mask - 1] + 1:"),
        ),
    ),
    Target(
        "service/tasks/passes.py",
        "tests/service/tasks/test_masks.py tests/service/tasks/test_flow.py",
        (M("if tokens > most:", "if tokens > most + 1:"),),
    ),
    Target(
        "service/tasks/passes.py",
        "tests/service/tasks/test_masks.py",
        (
            M("own = len(text) * bool(self.single)", "own = len(text)"),
            M("if (size := length + pieces - 1) > limit:", "if (size := length + pieces) > limit:"),
            M("return math.exp(log_probability / len(ids))", "return math.exp(log_probability)"),
            M("np.full(pieces - 1, text.types[mask])", "np.full(pieces - 1, 1 - text.types[mask])"),
        ),
    ),
    Target(
        "service/tasks/likelihood.py",
        "tests/service/http/test_several_passes.py",
        (
            M("ids[positions[n:end]] = mask_id", "ids[positions[n]] = mask_id"),
            M('own[over:] if direction == "left" else own[: len(own) - over]', "own[: len(own) - over]"),
            M("total / len({*sentence.words})", "total / len(sentence.words)"),
        ),
    ),
    Target(
        "service/tasks/fill_mask.py",
        "tests/service/tasks/test_masks.py tests/service/tasks/test_flow.py",
        (
            M("masks = 1 if self.joint else len(one.masks)", "masks = len(one.masks)"),
            M("AnswerSize(tasks, min(top_k, len(words) or top_k))", "AnswerSize(tasks, top_k)"),
            M("tuple(ids[:1] if first_piece else ids)", "tuple(ids)"),
        ),
    ),
    Target(
        "service/scheduling/queue.py",
        "tests/service/scheduling/test_queue.py",
        (
            M(
                "self.max_tokens if size <= self.token_budget else",
                "self.max_tokens if size < self.token_budget else",
            ),
            M("max(1, min(self.token_budget, tokens // 2))", "max(1, tokens // 2)"),
            M("ageing.extendleft(reversed(idle))", "ageing.extendleft(idle)"),
            M("kept_free = half if bulk and", "kept_free = half if False and"),
            M("if taken and not bulk:", "if taken:"),
            M(
                "<= now and batch.tokens_left > half:",
                "<= now and batch.tokens_left > 0:",
                "a late request beyond the half is offered no tokens, so nothing of it is taken",
            ),
            M("batch.tokens_left -= taken", "batch.tokens_left -= 1"),
            M("size * AGEING_SHARE <= self", "size <= self"),
            M("            elif request.deadline <= now:", "            elif request.deadline < now:"),
            M("            request.in_order &= at == request.virtual_finish", "            request.in_order &= True"),
            M("            if not model.aside:\n", "            if True:\n"),
        ),
    ),
    Target(
        "service/scheduling/order.py",
        "tests/service/scheduling/test_fair_order.py",
        (
            M(
                "cost = tokens + max(0, self.minimum_cost - size) if last else tokens",
                "cost = tokens",
            ),
            M("self._change_remaining(number, -unserved)", "self._change_remaining(number, 0)"),
            M("self.virtual_time += cost / len(finishes)", "self.virtual_time += cost"),
            M("if bucket <= limit])", "if bucket < limit])"),
        ),
    ),
    Target(
        "service/http/limits.py",
        "tests/service/http/limits/test_connections.py",
        (
            M("return self.open > self.most", "return self.open >= self.most"),
            M("self.open -= 1\n        self.watch()", "self.open -= 1"),
        ),
    ),
    Target(
        "service/http/limits.py",
        "tests/service/http/limits/test_totals.py",
        (
            M("if self.bodies + size > self.most:", "if self.bodies + size >= self.most:"),
            M("while len(self.unsent) > 1 and sum", "while sum"),
            M("idle = not self.bodies and not self.unsent", "idle = not self.bodies"),
        ),
    ),
    Target(
        "service/tasks/flow.py",
        "tests/service/tasks/test_flow.py",
        (
            M("waited = min(waited, request.queue_seconds)", "waited += 0.0"),
            M("queue.leave(request, answered=answered)", "queue.leave(request, answered=True)"),
            M("            await later.aclose()\n", "            pass\n"),
            M("error.index = result.owners[error.index]", "pass"),
            M("len(sent) > 1 and sum", "sum"),
            M("        if one.empty and not (accepts_empty and len(one.ids)):", "        if one.empty:"),
        ),
    ),
)


def main() -> None:
    chosen = [
        (target, one)
        for target in TARGETS
        for one in target.mutations
        if not sys.argv[1:] or any(word in f"{target.file} {one.old}" for word in sys.argv[1:])
    ]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)  # the package is links to the folders
        _check_unchanged(copy, sorted({target.tests for target, _ in chosen}))
        faults = list(_faults(copy, chosen))
    sys.stdout.write(f"{len(chosen)} mutants, {len(faults)} faults\n" + "".join(f"{fault}\n" for fault in faults))
    sys.exit(bool(faults))


def _check_unchanged(copy: Path, tests: Sequence[str]) -> None:
    """Ends the run where tests fail without any change."""
    for one in tests:
        if not _passes(copy, one):
            sys.exit(f"{one} fails without a mutation")


def _faults(copy: Path, chosen: Sequence[tuple[Target, Mutation]]) -> Iterator[str]:
    """Survivors, equivalent mutants that were killed, and rows that do not fit."""
    for target, one in chosen:
        file, started = copy / target.file, time.monotonic()
        original = file.read_text("utf-8")
        if original.count(one.old) != 1:
            yield f"{target.file}: {one.old!r} occurs {original.count(one.old)} times, not once"
            continue
        file.write_text(original.replace(one.old, one.new), "utf-8")
        survived = _passes(copy, target.tests)
        file.write_text(original, "utf-8")
        name = f"{target.file}: {one.old!r} -> {one.new!r}"
        word = ("equivalent" if one.equivalent else "SURVIVED") if survived else "killed"
        sys.stdout.write(f"{word:10} {time.monotonic() - started:5.1f} s  {name}\n")
        sys.stdout.flush()
        if survived and not one.equivalent:
            yield f"survived: {name}"
        if not survived and one.equivalent:
            yield f"killed, though called equivalent: {name}"


def _passes(copy: Path, tests: str) -> bool:
    cache = f"cache_dir={copy.parent / 'cache'}"  # of artifacts, by what their export depends on
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-o", cache, *tests.split()]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


if __name__ == "__main__":
    main()
