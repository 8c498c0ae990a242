"""`python -m training --corpus DIR --work DIR --output DIR`: trains the bundled model on a corpus.

Every stage keeps what it made under --work; the same command continues where an earlier run stopped. SIGTERM saves and
stops. A second run continues a finished model: --start MODEL --run NAME.
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from training.data.batches import MASKED_SHARE
from training.run.recipe import DECAY_SHARE, Recipe, Run, recipe

STAGES = ("grow", "adopt", "prepare", "teacher", "train", "publish", "card", "check")
DEFAULT_STAGES = ("prepare", "teacher", "train", "publish")
log = logging.getLogger(__name__)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    add_folders(parser)
    add_run(parser)
    parser.add_argument("--layers", type=int, default=6, help="of the model that grow writes")
    parser.add_argument("--pieces", type=int, default=20_000, help="vocabulary of the model that grow writes")
    parser.add_argument("--mix", type=Path, help="folder of a model: publish a mixture of its weights and the run's")
    parser.add_argument("--mix-share", type=float, default=0.75, help="share of the run in that mixture")
    parser.add_argument(
        "--rounds", type=int, default=60, help="how much to measure: 600 masked tokens and about 70 pairs each"
    )
    parser.add_argument(
        "--only",
        choices=STAGES,
        help="one stage; grow writes a larger start model of --start into --output, adopt one with the body of "
        "--teacher-model and the vocabulary of --start; card writes README.md from "
        "figures.json; check and teacher need transformers",
    )
    return parser.parse_args(arguments)


def add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", type=Path, required=True, help="folder of *.txt or *.txt.zst")
    parser.add_argument("--work", type=Path, required=True, help="vocabulary, encoded corpus and checkpoints")
    parser.add_argument("--output", type=Path, required=True, help="folder of the finished model")
    parser.add_argument(
        "--tatoeba", type=Path, help="tsv.gz of an English and a Chinese sentence a line, to add to the corpus"
    )
    parser.add_argument(
        "--similarity", type=Path, help="stsbenchmark.tsv.gz, to measure with; its sentences are not trained on"
    )
    parser.add_argument(
        "--teacher",
        type=Path,
        help="file of sentence vectors (*.npz): adds the third loss, that vectors agree with them",
    )
    parser.add_argument(
        "--teacher-model",
        type=Path,
        help="folder of an English sentence-transformer, to write the file --teacher with; adopt takes its body",
    )
    parser.add_argument(
        "--teacher-sentences", type=int, default=110_000, help="of the English corpus, beside those of --tatoeba"
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens",
        type=int,
        default=67_000_000,
        help="tokens to train on in all; the learning rate decays over the last --decay of them, with --start over all",
    )
    parser.add_argument(
        "--run",
        default="checkpoints",
        help="name of the run: its folder of checkpoints under --work, and the seed of its rows",
    )
    parser.add_argument("--start", type=Path, help="folder of a finished model to continue from")
    parser.add_argument("--constant", action="store_true", help="with --start: no decay before the last --decay either")
    parser.add_argument("--decay", type=float, default=DECAY_SHARE, help="share of the tokens with a falling rate")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument(
        "--until", type=float, help="seconds since the epoch at which the schedule ends, however few tokens were seen"
    )
    parser.add_argument(
        "--guide", type=Path, help="folder of a finished model of the same vocabulary, whose answers are learned too"
    )
    parser.add_argument("--everyday", type=float, help="share of the rows from everyday sentences (--tatoeba)")
    parser.add_argument(
        "--masked",
        type=float,
        default=MASKED_SHARE,
        help=f"share of the tokens that are predicted; towards the end {MASKED_SHARE}",
    )
    parser.add_argument("--step-tokens", type=int, help="tokens of a step; without it 8,192, with cuda 65,536")
    parser.add_argument("--pause", type=Path, help="while this file exists, the training waits")
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that share the weights, one core each; 1 with cuda"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def plan(arguments: argparse.Namespace) -> Recipe:
    run = Run(
        name=arguments.run,
        start=arguments.start,
        rate=arguments.rate,
        constant=arguments.constant,
        decay=arguments.decay,
        until=arguments.until,
        pause=arguments.pause,
        teacher=arguments.teacher,
        guide=arguments.guide,
        everyday=arguments.everyday,
        masked=arguments.masked,
        step_tokens=arguments.step_tokens,
    )
    return recipe(
        work=arguments.work, tokens=arguments.tokens, device=arguments.device, workers=arguments.workers, run=run
    )


def reserved_sentences(arguments: argparse.Namespace) -> Callable[[str], bool]:
    """Whether a sentence belongs to the evaluation."""
    from training.data.similarity_table import read_table
    from training.data.tatoeba import make_reserved
    from training.report.prompts import PAIRS, masked_texts

    records = read_table(arguments.similarity) if arguments.similarity else []
    judged = [record[side] for record in records for side in ("sentence1", "sentence2")]
    return make_reserved(masked=masked_texts(), whole=[*judged, *(text for pair in PAIRS for text in pair)])


# The stages import what they need themselves: prepare, card and --help work without torch.


def run_grow(arguments: argparse.Namespace) -> None:
    from tokenizers import Tokenizer

    from training.data.articles import find_corpus
    from training.data.larger_vocabulary import enlarge_vocabulary
    from training.data.vocabulary import write_vocabulary
    from training.model.grow import grow

    smaller = Tokenizer.from_file(str(arguments.start / "tokenizer.json"))
    larger = enlarge_vocabulary(smaller, corpus=find_corpus(arguments.corpus), size=arguments.pieces)
    grow(arguments.start, larger=larger, layers=arguments.layers, output=arguments.output)
    write_vocabulary(larger, folder=arguments.output)


def run_adopt(arguments: argparse.Namespace) -> None:
    from training.data.tatoeba import LANGUAGES
    from training.data.vocabulary import copy_vocabulary
    from training.model.adopt import adopt

    english, chinese = ((arguments.work / f"pairs-{one}.txt").read_text("utf-8").splitlines() for one in LANGUAGES)
    adopt(arguments.teacher_model, start=arguments.start, english=english, chinese=chinese, output=arguments.output)
    copy_vocabulary(arguments.start, arguments.output)


def run_prepare(arguments: argparse.Namespace) -> None:
    from training.data.prepare import prepare
    from training.data.tatoeba import write_tatoeba

    if arguments.tatoeba:
        reserved = reserved_sentences(arguments)
        write_tatoeba(arguments.tatoeba, corpus=arguments.corpus, work=arguments.work, reserved=reserved)
    prepare(corpus=arguments.corpus, work=arguments.work, start=arguments.start)


def run_teacher(arguments: argparse.Namespace) -> None:
    if arguments.teacher_model is None or arguments.teacher is None or arguments.teacher.exists():
        return
    from training.data.articles import find_corpus, language_of
    from training.run.teacher import write_vectors

    write_vectors(
        teacher=arguments.teacher_model,
        work=arguments.work,
        corpora=[path for path in find_corpus(arguments.corpus) if language_of(path) == "en"],
        reserved=reserved_sentences(arguments),
        count=arguments.teacher_sentences,
        width=plan(arguments).shape.hidden,
        start=arguments.start,
        output=arguments.teacher,
    )


def run_train(arguments: argparse.Namespace) -> None:
    from training.run.train import train

    train(plan(arguments))


def run_publish(arguments: argparse.Namespace) -> None:
    from training.data.tatoeba import held_out_pairs
    from training.report.publish import measure, write_model

    made, output = plan(arguments), arguments.output
    write_model(made, work=arguments.work, output=output, other=arguments.mix, share=arguments.mix_share)
    pairs = held_out_pairs(arguments.tatoeba, reserved=reserved_sentences(arguments)) if arguments.tatoeba else []
    measure(made, output=output, similarity=arguments.similarity, pairs=pairs, rounds=arguments.rounds)


def run_card(arguments: argparse.Namespace) -> None:
    from training.report.card import write_card

    write_card(arguments.output)


def run_check(arguments: argparse.Namespace) -> None:
    from training.report.parity import largest_difference

    difference = largest_difference(arguments.output)
    log.info("%s: scores differ from those of transformers by at most %.1e", arguments.output, difference)


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    arguments = parse_arguments()
    stages = {
        "grow": run_grow,
        "adopt": run_adopt,
        "prepare": run_prepare,
        "teacher": run_teacher,
        "train": run_train,
        "publish": run_publish,
        "card": run_card,
        "check": run_check,
    }
    for stage in [arguments.only] if arguments.only else DEFAULT_STAGES:
        stages[stage](arguments)


if __name__ == "__main__":
    main()
