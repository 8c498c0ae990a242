"""`python -m benchmarks.engine.likelihood ARTIFACT ...`: what the likelihood of a sentence costs.

A sentence of n tokens takes n passes. It is compared with as many texts of its length in one request: to /fill-mask,
with one mask and one candidate each, and to /embed. All three are tasks over the service's queue and model runner, with
tokenizing and without HTTP. They take turns, and the median of the ratios of the rounds counts. ARTIFACT is a folder,
or fp32 or int8 for BERT-base with random weights.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.harness.checkpoints import artifact_to_serve
from benchmarks.harness.machine import table, update
from packbert.service.artifact import open_artifact
from packbert.service.backend import Backend
from packbert.service.observability.metrics import Metrics
from packbert.service.settings import Settings
from packbert.service.tasks.embed import embed
from packbert.service.tasks.fill_mask import FillMaskRequest, fill_mask
from packbert.service.tasks.flow import Task, TaskResult, Tasks, answer_request
from packbert.service.tasks.inputs import EmbedRequest, TruncationFields
from packbert.service.tasks.likelihood import score_sentences

LENGTHS = (16, 32)  # tokens, special ones included
Ask = Callable[[], Awaitable[TaskResult]]
Medians = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.likelihood",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifacts", nargs="+", metavar="ARTIFACT")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--output", default="likelihood", help="name of the JSON file in benchmarks/results; - for none"
    )
    arguments = parser.parse_args()
    for name in arguments.artifacts:
        shown, found = asyncio.run(measure(artifact_to_serve(name), arguments.rounds))
        print(table([shown, *next(iter(found.values()))], [[length, *one.values()] for length, one in found.items()]))
        if arguments.output != "-":
            update(arguments.output, {shown: found}, details={"rounds": arguments.rounds})


async def measure(artifact: Path, rounds: int) -> tuple[str, dict[str, Medians]]:
    """The artifact's name and precision; by length: milliseconds of each contender, and the ratios."""
    backend = Backend(open_artifact(artifact), Settings(artifact=artifact), Metrics())
    await backend.open()
    try:
        found = {str(length): await compare(backend.tasks, length, rounds) for length in LENGTHS}
    finally:
        await backend.close()
    return f"{backend.artifact.manifest.name}, {backend.artifact.manifest.precision}", found


async def compare(tasks: Tasks, length: int, rounds: int) -> Medians:
    contenders = await make_contenders(tasks, length)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, ask in contenders.items():
            started = time.perf_counter()
            await ask()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    medians = {f"{name} ms": 1e3 * statistics.median(found) for name, found in seconds.items()}
    for other in ("fill-mask", "embed"):
        ratios = [ours / theirs for ours, theirs in zip(seconds["score"], seconds[other], strict=True)]
        medians[f"score / {other}"] = statistics.median(ratios)
    return medians


async def make_contenders(tasks: Tasks, length: int) -> dict[str, Ask]:
    """Each computes length - 2 sequences of `length` tokens."""
    words = [tasks.tokenizer.piece(token_id) for token_id in range(2000, 2000 + 4 * length)]
    single = [word for word in words if word.isalnum()][: length - 2]
    texts = [" ".join(single[n:] + single[:n]) for n in range(length - 2)]
    masked = [text.replace(f"{single[n]} ", f"{tasks.tokenizer.mask_token} ", 1) for n, text in enumerate(texts)]

    async def score(tasks: Tasks, fields: TruncationFields) -> Task:
        return await score_sentences(tasks, texts[:1], fields, "within_word")

    contenders: dict[str, Ask] = {
        "score": lambda: answer_request(tasks, score, TruncationFields()),
        "fill-mask": lambda: answer_request(tasks, fill_mask, FillMaskRequest(inputs=masked, top_k=1)),
        "embed": lambda: answer_request(tasks, embed, EmbedRequest(inputs=texts, pooling="cls")),
    }
    for name, ask in contenders.items():
        result = await ask()
        if (len(result.sequences), result.tokens) != (length - 2, (length - 2) * length):
            raise SystemExit(f"{name} computes {len(result.sequences)} sequences and {result.tokens} tokens")
    return contenders


if __name__ == "__main__":
    main()
