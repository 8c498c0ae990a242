"""Requests that run the model several times for one input: what they cost, and all passes as one request to the queue.

Knows the queue; does not know what a pass is for.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from service.errors import TooLarge, TooMuchForDeadline
from service.tasks.base import TaskResult, Tasks, indexes_of_texts, task_result
from service.tokenization.encoding import EncodedText
from service.turns import in_turns

PASSES_AT_ONCE = 64  # appended to the request together
WAY_OUT = "send shorter texts, fewer at once, or a longer x-request-timeout-ms"
Pass = tuple[int, EncodedText]  # the index of the input, and the sequence that the model gets


def check_cost(tasks: Tasks, passes: int, tokens: int, way_out: str) -> None:
    """Raises TooLarge where passes with so many `tokens` in all are more than the queue takes at once."""
    most = tasks.limits.max_tokens
    if tokens > most:
        cost = f"the request takes {passes} passes of the model with {tokens} tokens in all"
        raise TooLarge(f"{cost}; at most {most} are allowed (nine tenths of BERT_MAX_WAITING_TOKENS): {way_out}")


def batched(passes: Iterable[Pass], count: int) -> Iterator[Sequence[Pass]]:
    remaining = iter(passes)
    while part := list(islice(remaining, count)):
        yield part


async def run_passes(
    tasks: Tasks, passes: Iterable[Pass], *, count: int, tokens: int, timeout_seconds: float
) -> TaskResult:
    """Runs `count` passes with `tokens` tokens in all as one request; the model runs on the first while later are made.

    The result has a row for each pass and its input as the owner, and no time of tokenizing. An error has the index of
    the input. Raises what the queue raises.
    """
    sequences: list[EncodedText] = []
    owners: list[int] = []
    left = tokens
    try:
        request = tasks.queue.begin(count, tokens, timeout_seconds=timeout_seconds)
        try:
            async for part in in_turns(batched(passes, PASSES_AT_ONCE)):
                if request.ended.done():
                    break
                owners += [owner for owner, _ in part]
                made = [sequence for _, sequence in part]
                sequences += made
                left -= sum(map(len, made))
                request.append(made, left)
        except BaseException:
            request.withdraw()
            raise
        with indexes_of_texts(owners):
            result = await request.finish()
    except TooMuchForDeadline as error:
        cost, _, _ = error.message.partition(": ")
        error.message = f"{cost}; they are {count} passes of the model: {WAY_OUT}"
        raise
    return task_result(sequences, owners, result, 0.0)
