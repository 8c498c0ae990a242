"""`long: "windows"`: a text that is too long as windows that overlap, and one answer made of theirs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packbert.service.errors import Invalid
from packbert.service.tasks.base import TaskResult, Tasks
from packbert.service.tasks.inputs import TruncationFields, WindowFields
from packbert.service.tokenization.encoding import EncodeOptions, Text
from packbert.service.turns import in_turns

Answer = NDArray[Any]
Combine = Callable[[Answer, NDArray[np.int64]], Answer]  # [windows, ...] and [windows] tokens added -> [...]


def asks_for_windows(fields: WindowFields, request: TruncationFields) -> bool:
    """Raises Invalid where texts are also to be cut."""
    if fields.long is None and fields.stride is None:
        return False
    if request.truncate not in (None, False, "NONE"):
        message = "truncate: true cuts a text that is too long, and long: windows (or a stride) reads all of it"
        raise Invalid(f"{message}: send one of them", code="parameters")
    return True


async def run_windows(
    tasks: Tasks,
    texts: Sequence[Text],
    fields: WindowFields,
    options: EncodeOptions,
    *,
    prompt: int = 0,
    in_parts: bool = True,
) -> TaskResult:
    """As Tasks.run, with a row for each window; every window begins with the first `prompt` tokens of its text.

    A window counts as an input, and its tokens count in the queue. An error has the index of the text.
    """
    tasks.check_count(texts)
    most = tasks.limits.max_inputs
    job = tasks.tokenizer.start_windows(texts, options, stride=fields.stride, prompt=prompt, most=most)
    result = await tasks.run_job(job, in_parts=in_parts)
    result.added = job.added
    return result


async def run_vectors(
    tasks: Tasks, texts: Sequence[str], prompt: str, fields: WindowFields, options: EncodeOptions
) -> TaskResult:
    """As Tasks.run, with one row for each text: the mean over its windows, which all begin with `prompt`."""
    size = 0
    if prompt:
        size, _ = await tasks.prepare(_count_tokens(tasks, prompt, options))
    result = await run_windows(tasks, texts, fields, options, prompt=size)
    (output,) = options.outputs
    vectors = await combine_windows(result, [row[output] for row in result.rows], mean)
    result.rows = [{output: vector} for vector in vectors]
    return result


def windows_of_texts(result: TaskResult) -> list[slice]:
    """Where the windows of each text are among the rows of the result."""
    ends = np.cumsum(np.bincount(result.owners)).tolist()
    return list(map(slice, [0, *ends[:-1]], ends))


async def combine_windows(result: TaskResult, answers: Sequence[Answer], combine: Combine) -> list[Answer]:
    """The answer of each text, from those of all windows; that of a text of one window is untouched."""
    added = np.array(result.added, np.int64)
    return [
        answers[own.start] if own.stop - own.start == 1 else combine(np.stack(answers[own]), added[own])
        async for own in in_turns(windows_of_texts(result))
    ]


def mean(answers: Answer, added: NDArray[np.int64]) -> Answer:
    """[...] of [windows, ...], in float64 weighted by the tokens that each window adds; then as it was."""
    return np.asarray(np.average(answers.astype(np.float64), axis=0, weights=added), answers.dtype)


def largest(answers: Answer, added: NDArray[np.int64]) -> Answer:  # noqa: ARG001
    """[...] of [windows, ...]."""
    return np.asarray(answers.max(axis=0))


async def _count_tokens(tasks: Tasks, prompt: str, options: EncodeOptions) -> int:
    """Of the prompt, up to the model's limit, without the special tokens around it."""
    (alone,) = await tasks.tokenizer.encode([prompt], replace(options, spans=True), "right")
    return int((alone.spans[:, 0] >= 0).sum())
