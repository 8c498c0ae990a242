"""Writes the model card from the figures and the facts of the training."""

from dataclasses import dataclass
from pathlib import Path
from string import Template

from training.model.shape import Shape
from training.report.evaluate import Figures, to_markdown

TEMPLATE = Path(__file__).with_name("card.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    tokens: int
    steps: int
    compute: str


def model_card(*, shape: Shape, training: Training, figures: Figures) -> str:
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        vocabulary=f"{shape.vocabulary_size:,}",
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        inner=f"{shape.inner:,}",
        tokens=f"{training.tokens / 1e6:,.0f} million",
        steps=f"{training.steps:,}",
        compute=training.compute,
        figures=to_markdown(figures),
    )
