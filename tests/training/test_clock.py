"""A run ends at a given time and pauses while a file exists."""

from pathlib import Path

from training.run.clock import PAUSE_POLL_SECONDS, place_in_schedule, wait_while_paused


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
