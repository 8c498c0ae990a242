"""Writes the bundled model from the latest saved state: weights, configuration, vocabulary, figures and card."""

import logging
import shutil
from pathlib import Path

from training.data.corpus import open_sources
from training.model.checkpoint_files import write_checkpoint
from training.report.card import Training, model_card
from training.report.evaluate import evaluate, to_json
from training.run.recipe import Recipe
from training.run.state import find_latest, merge_weights

VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
MAX_BYTES = 24_000_000
log = logging.getLogger(__name__)


def publish(recipe: Recipe, *, work: Path, output: Path, similarity: Path | None, compute: str, rounds: int) -> None:
    folder = find_latest(recipe.checkpoints)
    if folder is None:
        raise FileNotFoundError(f"no saved state under {recipe.checkpoints}: train first")
    shape, tensors, tokens = merge_weights(folder)
    write_checkpoint(tensors, shape=shape, folder=output)
    for name in VOCABULARY_FILES:
        shutil.copyfile(work / "vocabulary" / name, output / name)
    sources = open_sources(folder=recipe.encoded, part="held_out")
    figures = evaluate(output, sources=sources, similarity_table=similarity, rounds=rounds)
    training = Training(tokens=tokens, steps=tokens // recipe.tokens_per_step, compute=compute)
    (output / "figures.json").write_text(to_json(figures), encoding="utf-8")
    (output / "README.md").write_text(model_card(shape=shape, training=training, figures=figures), encoding="utf-8")
    check_size(output)


def check_size(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > MAX_BYTES:
        raise ValueError(f"{folder} holds {size} bytes; {MAX_BYTES} at most")
    log.info("%s written: %.1f MB", folder, size / 1e6)
