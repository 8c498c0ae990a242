"""`python -m training --corpus DIR --work DIR --output DIR`: trains the bundled model on a corpus.

Every stage keeps what it made under --work; the same command continues where an earlier run stopped.
"""

import argparse
import logging
from pathlib import Path

from training.data.prepare import prepare
from training.report.publish import publish
from training.run.recipe import recipe
from training.run.train import train

log = logging.getLogger(__name__)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of *.txt or *.txt.zst")
    parser.add_argument("--work", type=Path, required=True, help="vocabulary, encoded corpus and checkpoints")
    parser.add_argument("--output", type=Path, required=True, help="folder of the finished model")
    parser.add_argument(
        "--tokens",
        type=int,
        default=67_000_000,
        help="tokens to train on in all; the learning rate decays over the last 35 %%",
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that share the weights, one core each; 1 with cuda"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--similarity", type=Path, help="stsbenchmark.tsv.gz, to measure sentence similarity with")
    parser.add_argument("--compute", default="2 CPU cores with AMX bf16", help="the machine, for the model card")
    parser.add_argument(
        "--rounds", type=int, default=60, help="how much to measure: 600 masked tokens and about 70 pairs each"
    )
    parser.add_argument(
        "--only", choices=("prepare", "train", "publish", "check"), help="one stage; check needs transformers"
    )
    return parser.parse_args()


def check(folder: Path) -> None:
    from training.report.parity import largest_difference  # needs transformers, which training does not

    log.info("%s: scores differ from those of transformers by at most %.1e", folder, largest_difference(folder))


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    arguments = parse_arguments()
    plan = recipe(work=arguments.work, tokens=arguments.tokens, device=arguments.device, workers=arguments.workers)
    if arguments.only == "check":
        check(arguments.output)
    if arguments.only in (None, "prepare"):
        prepare(corpus=arguments.corpus, work=arguments.work)
    if arguments.only in (None, "train"):
        train(plan)
    if arguments.only in (None, "publish"):
        publish(
            plan,
            work=arguments.work,
            output=arguments.output,
            similarity=arguments.similarity,
            compute=arguments.compute,
            rounds=arguments.rounds,
        )


if __name__ == "__main__":
    main()
