"""The number of cores that a container may use, not that of its host."""

import os
from pathlib import Path

import pytest

from packbert.service.engine.cpu import available_cores

ALLOWED = len(os.sched_getaffinity(0))


def group_v2(folder: Path, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(content)


def group_v1(folder: Path, quota: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000\n")


def cores(root: Path, membership: str) -> int:
    (root / "membership").write_text(membership)
    return available_cores(root, root / "membership")


@pytest.mark.parametrize(
    ("content", "expected"),
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
def test_the_quota_limits_the_cores_and_at_least_one_is_left(tmp_path: Path, content: str, expected: int) -> None:
    group_v2(tmp_path, content)
    assert cores(tmp_path, "0::/\n") == expected
    assert available_cores(tmp_path, tmp_path / "missing") == expected


@pytest.mark.parametrize("limited", ["a", "a/b", "a/b/c"])
def test_the_quota_of_the_group_and_of_each_parent_counts(tmp_path: Path, limited: str) -> None:
    for folder in ("a", "a/b", "a/b/c", "a/other"):
        group_v2(tmp_path / folder, "100000 100000" if folder == limited else "max 100000")
    assert cores(tmp_path, "0::/a/b/c\n") == 1
    assert cores(tmp_path, "0::/a/other\n") == (1 if limited == "a" else ALLOWED)


@pytest.mark.parametrize(("quota", "expected"), [("100000\n", 1), ("-1\n", ALLOWED)])
@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_quotas_of_cgroup_version_1_count_too(tmp_path: Path, controllers: str, quota: str, expected: int) -> None:
    group_v1(tmp_path / controllers / "a", quota)
    group_v1(tmp_path / "memory" / "a", "100000\n")
    assert cores(tmp_path, f"4:memory:/a\n2:{controllers}:/a/b\n0::/\n") == expected
    group_v1(tmp_path / controllers, quota)  # in a container: its own group is the root, and the path is the host's
    assert cores(tmp_path, f"2:{controllers}:/docker/0123\n") == expected


def test_without_a_quota_it_is_the_affinity_mask(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "missing", tmp_path / "missing") == ALLOWED
