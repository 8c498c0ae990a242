"""The schedule of a run, its configuration, its end and its pauses; two models are mixed by a share."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.paths import SAMPLE
from training import __main__ as command
from training.model.shape import read_config, write_config
from training.run.clock import PAUSE_POLL_SECONDS, place_in_schedule, wait_while_paused
from training.run.mix import mix
from training.run.recipe import SHAPE, Run, recipe
from training.run.schedule import Schedule

SCHEDULE = Schedule(total=1000, warm_up=100, decay_share=0.4, short_row=128, long_row=512)
CONTINUED = replace(SCHEDULE, decay_share=0.5, continues=True, long_every=4)
FIRST = {"words": np.array([0.0, 4.0]), "bias": np.array([1.0])}
SECOND = {"words": np.array([8.0, 0.0]), "bias": np.array([1.0])}


def test_the_learning_rate_rises_stays_and_falls_to_nothing() -> None:
    factors = {0: 0.01, 49: 0.5, 99: 1, 300: 1, 599: 1, 700: 0.5, 1000: 0, 5000: 0}  # 1 - square root of a quarter
    assert {tokens: SCHEDULE.factor(tokens) for tokens in factors} == pytest.approx(factors)
    linear = {0: 0.01, 99: 1, 550: 0.5, 1000: 0, 2000: 0}  # a run that continues
    assert {tokens: CONTINUED.factor(tokens) for tokens in linear} == pytest.approx(linear)


def test_long_rows_come_in_some_steps_of_the_decay() -> None:
    assert {SCHEDULE.row_length(599, step=step) for step in range(4)} == {128}
    assert [SCHEDULE.row_length(600, step=step) for step in range(4)] == [128, 512, 128, 512]
    assert {CONTINUED.row_length(499, step=step) for step in range(4)} == {128}
    assert [CONTINUED.row_length(600, step=step) for step in range(5)] == [128, 512, 128, 128, 128]


def test_the_recipe_of_the_bundled_model(tmp_path: Path) -> None:
    made = recipe(work=tmp_path, tokens=67_000_000, device="cpu", workers=2)
    assert made.shape == SHAPE
    assert made.schedule.decay_begins == pytest.approx(43.2e6, rel=0.001)
    assert sum(made.source_shares.values()) == pytest.approx(1.0)
    assert made.tokens_per_step % (made.workers * made.schedule.long_row) == 0
    assert made.encoded == tmp_path / "encoded"


def test_the_configuration_of_the_bundled_model_is_written_as_it_is_read(tmp_path: Path) -> None:
    write_config(read_config(SAMPLE / "config.json"), path=tmp_path / "config.json")
    assert json.loads((tmp_path / "config.json").read_text("utf-8")) == json.loads(
        (SAMPLE / "config.json").read_text("utf-8")
    )


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


def test_a_run_has_its_own_folder_rates_and_seed(tmp_path: Path) -> None:
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
    smaller = recipe(work=tmp_path, tokens=1_000_000, device="cpu", workers=2, run=Run(step_tokens=2048))
    assert smaller.tokens_per_step == 2048
    assert first.seed == recipe(work=tmp_path, tokens=1, device="cpu", workers=2).seed  # a resumed run sees its rows
    assert first.seed != second.seed  # a run that continues the first one sees others


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


@pytest.mark.parametrize(
    ("seen", "until", "now", "place"),
    [
        (500, None, 1e9, 500),  # without a time, the tokens seen count
        (10, 200.0, 150.0, 500),  # a slow run moves by the clock
        (10, 200.0, 200.0, 1000),
        (10, 200.0, 999.0, 1000),
        (800, 200.0, 150.0, 800),  # a fast run is not held back
        (10, 100.0, 100.0, 1000),  # a time before the start ends the run at once
    ],
)
def test_the_place_in_the_schedule_is_that_of_the_tokens_or_of_the_clock(
    seen: int, until: float | None, now: float, place: int
) -> None:
    assert place_in_schedule(seen, total=1000, began=100.0, until=until, now=now) == place


def test_the_run_waits_until_the_file_is_gone_or_it_is_stopped(tmp_path: Path) -> None:
    pause, slept = tmp_path / "PAUSE", list[float]()
    for absent in (None, pause):
        wait_while_paused(absent, stopped=lambda: False, sleep=slept.append)
    assert slept == []
    pause.touch()
    wait_while_paused(pause, stopped=lambda: len(slept) == 2, sleep=slept.append)
    assert (len(slept), pause.exists()) == (2, True)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 5:
            pause.unlink()

    wait_while_paused(pause, stopped=lambda: False, sleep=sleep)
    assert slept == [PAUSE_POLL_SECONDS] * 5


@pytest.mark.parametrize(("share", "words"), [(0.75, [6.0, 1.0]), (0.0, [0.0, 4.0]), (1.0, [8.0, 0.0])])
def test_each_weight_is_the_weighted_mean(share: float, words: list[float]) -> None:
    mixed = mix(FIRST, SECOND, share=share)
    assert {name: weights.tolist() for name, weights in mixed.items()} == {"words": words, "bias": [1.0]}


def test_models_with_other_parameters_or_a_share_outside_0_to_1_are_refused() -> None:
    with pytest.raises(ValueError, match=r"only one of the two models has \['bias'\]"):
        mix(FIRST, {"words": SECOND["words"]}, share=0.5)
    with pytest.raises(ValueError, match=r"the share of the second model is 1\.5; allowed are 0 to 1"):
        mix(FIRST, SECOND, share=1.5)
