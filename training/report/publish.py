"""Writes the bundled model from the latest saved state: weights, configuration, vocabulary, figures and card.

The weights can be mixed with those of another model, such as the one that the run started from.
"""

import logging
from pathlib import Path

from training.data.corpus import open_sources
from training.data.tatoeba import Pair
from training.data.vocabulary import copy_vocabulary
from training.model.checkpoint_files import read_checkpoint, write_checkpoint
from training.report.card import write_card
from training.report.evaluate import evaluate
from training.report.figures import to_json
from training.run.mix import mix
from training.run.recipe import Recipe
from training.run.state import find_latest, merge_weights

MAX_BYTES = 40_000_000
log = logging.getLogger(__name__)


def write_model(recipe: Recipe, *, work: Path, output: Path, other: Path | None, share: float) -> None:
    """Weights, configuration and vocabulary: (1 - share) * `other` + share * the run, or the run alone."""
    folder = find_latest(recipe.checkpoints)
    if folder is None:
        raise FileNotFoundError(f"no saved state under {recipe.checkpoints}: train first")
    shape, tensors, _ = merge_weights(folder)
    if other is not None:
        tensors = mix(read_checkpoint(other).state_dict(), tensors, share=share)
    write_checkpoint(tensors, shape=shape, folder=output)
    copy_vocabulary(work / "vocabulary", output)


def measure(recipe: Recipe, *, output: Path, similarity: Path | None, pairs: list[Pair], rounds: int) -> None:
    """Writes figures.json and the card into the folder of a model; `pairs`: held-out translations."""
    sources = open_sources(folder=recipe.encoded, part="held_out")
    figures = evaluate(output, sources=sources, similarity_table=similarity, pairs=pairs, rounds=rounds)
    (output / "figures.json").write_text(to_json(figures), encoding="utf-8")
    write_card(output)
    check_size(output)


def check_size(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > MAX_BYTES:
        raise ValueError(f"{folder} holds {size} bytes; {MAX_BYTES} at most")
    log.info("%s written: %.1f MB", folder, size / 1e6)
