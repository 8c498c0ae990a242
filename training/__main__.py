"""`python -m training --corpus DIR --work DIR --output DIR`: corpus files in, the bundled model out.

Every stage keeps what it made under --work; the same command goes on where an earlier run stopped.
"""

import argparse
import logging
from pathlib import Path

from tokenizers import Tokenizer

from training.data.corpus import encode_once
from training.data.vocabulary import train_vocabulary, write_vocabulary
from training.run.publish import publish
from training.run.recipe import recipe
from training.run.train import train

log = logging.getLogger(__name__)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of *.txt.zst")
    parser.add_argument("--work", type=Path, required=True, help="vocabulary, encoded corpus and checkpoints")
    parser.add_argument("--output", type=Path, required=True, help="folder of the finished model")
    parser.add_argument("--tokens", type=int, default=67_000_000, help="tokens to see in all; the last 35 % decay")
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


def prepare(*, corpus: Path, work: Path) -> None:
    paths = sorted(corpus.glob("*.txt.zst"))
    vocabulary = work / "vocabulary"
    if not (vocabulary / "tokenizer_config.json").exists():
        write_vocabulary(train_vocabulary(corpus=paths), folder=vocabulary)
        log.info("vocabulary written")
    tokenizer = Tokenizer.from_file(str(vocabulary / "tokenizer.json"))
    encode_once(corpus=paths, tokenizer=tokenizer, folder=work / "encoded")


def check(folder: Path) -> None:
    # here, so that training does not need transformers
    from training.model.parity import largest_difference

    log.info("%s: scores differ from those of transformers by at most %.1e", folder, largest_difference(folder))


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    asked = arguments()
    plan = recipe(work=asked.work, tokens=asked.tokens, device=asked.device, workers=asked.workers)
    if asked.only == "check":
        check(asked.output)
    if asked.only in (None, "prepare"):
        prepare(corpus=asked.corpus, work=asked.work)
    if asked.only in (None, "train"):
        train(plan)
    if asked.only in (None, "publish"):
        publish(
            plan,
            work=asked.work,
            output=asked.output,
            similarity=asked.similarity,
            compute=asked.compute,
            rounds=asked.rounds,
        )


if __name__ == "__main__":
    main()
