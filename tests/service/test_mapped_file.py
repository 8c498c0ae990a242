"""A copy in place of a mapped file: neither a write into the file nor its truncation reaches the mapping."""

import mmap
import os
from pathlib import Path

import pytest

from packbert.service.engine.mapped_file import detach_from, mappings_of

PAGE = mmap.PAGESIZE


def mapped(file: Path, offset: int = 0, size: int = 0, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    with file.open("r+b") as opened:
        return mmap.mmap(opened.fileno(), size, access=access, offset=offset)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Ten pages and a half, each with its own number in all bytes."""
    one = tmp_path / "a file (deleted) with spaces"
    one.write_bytes(b"".join(bytes([page]) * PAGE for page in range(1, 12))[: -PAGE // 2])
    return one


@pytest.mark.parametrize("change", ["overwritten", "truncated", "removed"])
def test_a_detached_mapping_keeps_its_bytes_whatever_happens_to_the_file(file: Path, change: str) -> None:
    before = file.read_bytes()
    with mapped(file) as whole, mapped(file, 4 * PAGE, 2 * PAGE) as part:
        assert len(mappings_of(file)) == 2
        assert detach_from(file) == 11 * PAGE  # once for both
        assert mappings_of(file) == []
        if change == "overwritten":
            file.write_bytes(bytes(len(before)))
        elif change == "truncated":
            os.truncate(file, 0)
        else:
            file.unlink()
        assert whole[:] == before
        assert part[:] == before[4 * PAGE : 6 * PAGE]


def test_only_what_is_mapped_is_copied(file: Path) -> None:
    with mapped(file, 2 * PAGE, PAGE) as one, mapped(file, 8 * PAGE, 2 * PAGE) as other:
        assert detach_from(file) == 3 * PAGE
        os.truncate(file, 0)
        assert (one[:], other[:]) == (bytes([3]) * PAGE, bytes([9]) * PAGE + bytes([10]) * PAGE)


def test_a_file_that_was_replaced_by_name_leaves_the_bytes_that_were_mapped(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    with mapped(file) as one:
        (tmp_path / "new").write_bytes(bytes(len(before)))
        (tmp_path / "new").replace(file)
        detach_from(file)
        assert one[:] == before


def test_a_file_truncated_before_is_an_error_and_not_the_end_of_the_process(file: Path) -> None:
    with mapped(file) as one:
        os.truncate(file, 0)
        with pytest.raises(OSError, match="Bad address"):
            detach_from(file)
        assert len(one) > 0


def test_a_writable_private_mapping_stays_writable_and_the_file_unchanged(file: Path) -> None:
    before = file.read_bytes()
    with mapped(file, access=mmap.ACCESS_COPY) as one:
        detach_from(file)
        one[0] = 99
        assert one[0] == 99
    assert file.read_bytes() == before


def test_a_file_that_is_not_mapped_costs_nothing(file: Path) -> None:
    assert detach_from(file) == 0
