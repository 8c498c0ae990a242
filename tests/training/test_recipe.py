"""The schedule of the learning rate and of the row lengths, and the configuration file."""

import json
from pathlib import Path

import pytest

from training.model.shape import read_config, write_config
from training.run.recipe import SHAPE, recipe
from training.run.schedule import Schedule

SCHEDULE = Schedule(total=1000, warm_up=100, decay_share=0.4, short_row=128, long_row=512)


def test_the_learning_rate_rises_stays_and_falls_to_nothing() -> None:
    assert SCHEDULE.factor(0) == pytest.approx(0.01)
    assert SCHEDULE.factor(49) == pytest.approx(0.5)
    assert {SCHEDULE.factor(tokens) for tokens in (99, 300, 599)} == {1.0}
    assert SCHEDULE.factor(700) == pytest.approx(0.5)  # 1 - square root of a quarter
    assert SCHEDULE.factor(1000) == 0.0
    assert SCHEDULE.factor(5000) == 0.0


def test_long_rows_come_in_every_other_step_of_the_decay() -> None:
    assert {SCHEDULE.row_length(599, step=step) for step in range(4)} == {128}
    assert [SCHEDULE.row_length(600, step=step) for step in range(4)] == [128, 512, 128, 512]


def test_the_recipe_of_the_bundled_model(tmp_path: Path) -> None:
    made = recipe(work=tmp_path, tokens=67_000_000, device="cpu", workers=2)
    assert made.shape == SHAPE
    assert made.schedule.decay_begins == pytest.approx(43.2e6, rel=0.001)
    assert sum(made.source_shares.values()) == pytest.approx(1.0)
    assert made.tokens_per_step % (made.workers * made.schedule.long_row) == 0
    assert made.encoded == tmp_path / "encoded"


def test_the_configuration_of_the_bundled_model_is_that_of_the_recipe(tmp_path: Path) -> None:
    write_config(SHAPE, path=tmp_path / "config.json")
    assert read_config(tmp_path / "config.json") == SHAPE
    bundled = Path(__file__).parents[2] / "model_export" / "sample" / "config.json"
    assert json.loads((tmp_path / "config.json").read_text("utf-8")) == json.loads(bundled.read_text("utf-8"))
