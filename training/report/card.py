"""Writes the model card from the figures. The template holds what was read and run: change it with each new model."""

from pathlib import Path
from string import Template

from training.model.shape import Shape, read_config
from training.report.figures import Figures, format_everyday_list, read_figures, to_markdown

TEMPLATE = Path(__file__).with_name("card.md")


def write_card(output: Path) -> None:
    """README.md from the template and figures.json."""
    card = model_card(shape=read_config(output / "config.json"), figures=read_figures(output / "figures.json"))
    (output / "README.md").write_text(card, encoding="utf-8")


def model_card(*, shape: Shape, figures: Figures) -> str:
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        vocabulary=f"{shape.vocabulary_size:,}",
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        inner=f"{shape.inner:,}",
        figures=to_markdown(figures),
        english=format_everyday_list(figures.everyday["en"]),
        chinese=format_everyday_list(figures.everyday["zh"]),
    )
