"""A run ends at a given time and pauses while a file exists; two models are mixed by a share."""

from pathlib import Path

import numpy as np
import pytest

from training.run.clock import PAUSE_POLL_SECONDS, place_in_schedule, wait_while_paused
from training.run.mix import mix

FIRST = {"words": np.array([0.0, 4.0]), "bias": np.array([1.0])}
SECOND = {"words": np.array([8.0, 0.0]), "bias": np.array([1.0])}


def test_without_a_time_the_schedule_counts_the_tokens_seen() -> None:
    assert place_in_schedule(500, total=1000, began=0.0, until=None, now=1e9) == 500


def test_a_slow_run_moves_through_its_schedule_by_the_clock() -> None:
    assert place_in_schedule(10, total=1000, began=100.0, until=200.0, now=150.0) == 500
    assert place_in_schedule(10, total=1000, began=100.0, until=200.0, now=200.0) == 1000
    assert place_in_schedule(10, total=1000, began=100.0, until=200.0, now=999.0) == 1000


def test_a_fast_run_is_not_held_back() -> None:
    assert place_in_schedule(800, total=1000, began=100.0, until=200.0, now=150.0) == 800


def test_a_time_before_the_start_ends_the_run_at_once() -> None:
    assert place_in_schedule(10, total=1000, began=100.0, until=100.0, now=100.0) == 1000


def test_the_run_waits_until_the_file_is_gone(tmp_path: Path) -> None:
    pause = tmp_path / "PAUSE"
    pause.touch()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            pause.unlink()

    wait_while_paused(pause, stopped=lambda: False, sleep=sleep)
    assert slept == [PAUSE_POLL_SECONDS] * 3


def test_a_stop_ends_the_pause(tmp_path: Path) -> None:
    pause = tmp_path / "PAUSE"
    pause.touch()
    slept: list[float] = []
    wait_while_paused(pause, stopped=lambda: len(slept) == 2, sleep=slept.append)
    assert len(slept) == 2
    assert pause.exists()


def test_without_a_file_nothing_waits(tmp_path: Path) -> None:
    slept: list[float] = []
    for pause in (None, tmp_path / "PAUSE"):
        wait_while_paused(pause, stopped=lambda: False, sleep=slept.append)
    assert slept == []


def test_each_weight_is_the_weighted_mean() -> None:
    mixed = mix(FIRST, SECOND, share=0.75)
    assert mixed["words"].tolist() == [6.0, 1.0]
    assert mixed["bias"].tolist() == [1.0]


def test_the_ends_are_the_models_themselves() -> None:
    for share, model in ((0.0, FIRST), (1.0, SECOND)):
        assert {name: weights.tolist() for name, weights in mix(FIRST, SECOND, share=share).items()} == {
            name: weights.tolist() for name, weights in model.items()
        }


def test_models_with_other_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"only one of the two models has \['bias'\]"):
        mix(FIRST, {"words": SECOND["words"]}, share=0.5)


def test_a_share_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the share of the second model is 1\.5; allowed are 0 to 1"):
        mix(FIRST, SECOND, share=1.5)
