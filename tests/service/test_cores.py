"""The cores that a container may use, not those that its host has."""

import os
from pathlib import Path

import pytest

from service.cores import available_cores

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("max 100000", ALLOWED),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("150000 100000", 1),
        (f"{ALLOWED + 5}00000 100000", ALLOWED),
        ("rubbish", ALLOWED),
        ("", ALLOWED),
    ],
)
def test_the_quota_limits_the_cores_and_at_least_one_is_left(tmp_path: Path, content: str, cores: int):
    (tmp_path / "cpu.max").write_text(content)
    assert available_cores(tmp_path / "cpu.max") == cores


def test_without_a_quota_it_is_the_affinity_mask(tmp_path: Path):
    assert available_cores(tmp_path / "missing") == ALLOWED
