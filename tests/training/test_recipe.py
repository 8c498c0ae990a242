"""The schedule of the learning rate and of the row lengths, and the configuration file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.paths import SAMPLE
from training import __main__ as command
from training.model.shape import read_config, write_config
from training.run.recipe import SHAPE, Run, recipe
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


def test_the_seed_of_the_rows_is_the_name_of_the_run(tmp_path: Path) -> None:
    first, again, second = (
        recipe(work=tmp_path, tokens=1_000_000, device="cpu", workers=2, run=Run(name=name)).seed
        for name in ("first", "first", "second")
    )
    assert first == again  # a resumed run sees the rows that it would have seen
    assert first != second  # a run that continues the first one sees others


def test_the_configuration_of_the_bundled_model_is_written_as_it_is_read(tmp_path: Path) -> None:
    bundled = Path(__file__).parents[2] / "model_export" / "sample" / "config.json"
    write_config(read_config(bundled), path=tmp_path / "config.json")
    assert json.loads((tmp_path / "config.json").read_text("utf-8")) == json.loads(bundled.read_text("utf-8"))


def test_a_run_that_continues_warms_up_and_falls_linearly_to_nothing() -> None:
    schedule = Schedule(
        total=1000, warm_up=100, decay_share=0.5, short_row=128, long_row=512, continues=True, long_every=4
    )
    assert schedule.factor(0) == pytest.approx(0.01)
    assert schedule.factor(99) == pytest.approx(1.0)
    assert schedule.factor(550) == pytest.approx(0.5)
    assert schedule.factor(1000) == 0.0
    assert schedule.factor(2000) == 0.0
    assert [schedule.row_length(600, step=step) for step in range(5)] == [128, 512, 128, 128, 128]
    assert {schedule.row_length(499, step=step) for step in range(4)} == {128}


def test_everyday_sentences_are_more_in_the_decay_and_with_a_teacher(tmp_path: Path) -> None:
    def share(tokens: int, run: Run) -> float:
        made = recipe(work=tmp_path, tokens=1_000_000, device="cpu", workers=1, run=run)
        names = sorted(made.source_shares)
        by_name = dict(zip(names, made.shares(names, tokens=tokens), strict=True))
        assert sum(by_name.values()) == pytest.approx(1.0)
        return by_name["entatoeba"] + by_name["zhtatoeba"]

    assert share(0, Run()) == pytest.approx(0.06)
    assert share(900_000, Run()) == pytest.approx(0.20)
    assert share(0, Run(start=SAMPLE, teacher=tmp_path / "vectors.npz")) == pytest.approx(0.20)
    assert share(0, Run(everyday=0.3)) == pytest.approx(0.30)
    assert share(900_000, Run(everyday=0.3)) == pytest.approx(0.30)


def test_fewer_tokens_are_masked_towards_the_end_of_a_run(tmp_path: Path) -> None:
    made = recipe(work=tmp_path, tokens=1_000_000, device="cpu", workers=2, run=Run(masked=0.3))
    assert [made.masked_share(tokens) for tokens in (0, 599_999, 600_000, 2_000_000)] == [0.3, 0.3, 0.15, 0.15]


def test_a_run_may_have_smaller_steps(tmp_path: Path) -> None:
    run = Run(step_tokens=2048)
    assert recipe(work=tmp_path, tokens=1_000_000, device="cpu", workers=2, run=run).tokens_per_step == 2048


def test_a_run_has_its_own_folder_and_rates(tmp_path: Path) -> None:
    first, second = (
        recipe(work=tmp_path, tokens=40_000_000, device="cpu", workers=2, run=run)
        for run in (Run(), Run(name="second", start=SAMPLE, rate=0.5))
    )
    assert first.checkpoints == tmp_path / "checkpoints"
    assert second.checkpoints == tmp_path / "second"
    assert second.matrix_rate == pytest.approx(first.matrix_rate / 2)
    assert second.other_rate == pytest.approx(first.other_rate / 2)
    assert second.schedule.continues
    assert second.schedule.warm_up == 1_000_000


def test_a_run_from_a_grown_model_has_its_sizes(tmp_path: Path) -> None:
    write_config(replace(SHAPE, layers=6, vocabulary_size=20_000), path=tmp_path / "config.json")
    run = Run(name="long", start=tmp_path, constant=True)
    made = recipe(work=tmp_path, tokens=250_000_000, device="cpu", workers=2, run=run)
    assert (made.shape.layers, made.shape.vocabulary_size) == (6, 20_000)
    assert not made.schedule.continues
    assert made.schedule.factor(150_000_000) == 1.0
    assert made.schedule.factor(250_000_000) == 0.0
    longer_decay = recipe(work=tmp_path, tokens=250_000_000, device="cpu", workers=2, run=replace(run, decay=0.5))
    assert longer_decay.schedule.factor(126_000_000) < 1.0


@pytest.mark.parametrize("constant", [False, True])
def test_the_third_loss_waits_for_the_decay_of_a_constant_run(tmp_path: Path, constant: bool) -> None:
    run = Run(start=SAMPLE, teacher=tmp_path / "vectors.npz", constant=constant)
    made = recipe(work=tmp_path, tokens=1_000_000, device="cpu", workers=2, run=run)
    assert made.has_third_loss(0) is not constant
    assert made.has_third_loss(900_000)
    assert not replace(made, run=replace(run, teacher=None)).has_third_loss(900_000)


@pytest.mark.parametrize(
    ("options", "stages"), [([], ["prepare", "teacher", "train", "publish"]), (["--only", "grow"], ["grow"])]
)
def test_a_model_is_grown_only_by_its_own_stage(
    monkeypatch: pytest.MonkeyPatch, options: list[str], stages: list[str]
) -> None:
    ran: list[str] = []
    for stage in command.STAGES:
        monkeypatch.setattr(command, f"run_{stage}", lambda _, stage=stage: ran.append(stage))
    monkeypatch.setattr("sys.argv", ["training", "--corpus", "a", "--work", "b", "--output", "c", *options])
    command.main()
    assert ran == stages
