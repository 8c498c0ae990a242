"""Huge pages: which mappings are moved, and that nothing changes in them."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from packbert.service.engine import huge_pages
from packbert.service.engine.huge_pages import HUGE_PAGE, LEAST_BYTES, use_huge_pages

ANONYMOUS = "7f0000001000-7f0002001000 rw-p 00000000 00:00 0 \nSize:              32768 kB\nRss:               {} kB\n"
FILE = "7f1000000000-7f1002000000 rw-p 00000000 08:01 77 /models/model.onnx.data\nSize: 1 kB\nRss: 32768 kB\n"
HEAP = (
    "560000000000-560002000000 rw-p 00000000 00:00 0                          [heap]\nSize: 32768 kB\nRss: 32768 kB\n"
)
STACK = "7f2000000000-7f2000800000 rw-p 00000000 00:00 0 \nSize:               8192 kB\nRss:                8192 kB\n"
READ_ONLY = (
    "7f3000000000-7f3002000000 r--p 00000000 00:00 0 \nSize:              32768 kB\nRss:               32768 kB\n"
)


def test_only_large_anonymous_mappings_that_are_filled_are_moved() -> None:
    smaps = FILE + ANONYMOUS.format(32000) + STACK + HEAP + READ_ONLY
    found = list(huge_pages._filled_mappings(smaps))
    assert found == [(0x7F0000200000, 2**25 - HUGE_PAGE), (0x560000000000, 2**25)]
    assert list(huge_pages._filled_mappings(ANONYMOUS.format(16000))) == []  # the rest would be filled with zeros


def test_what_is_moved_stays_as_it_is() -> None:
    memory = mmap.mmap(-1, 2 * LEAST_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    content = np.frombuffer(memory, np.uint32)
    content[:] = np.arange(len(content), dtype=np.uint32)
    moved = use_huge_pages()
    assert moved == 0 or moved >= LEAST_BYTES
    assert np.array_equal(content, np.arange(len(content), dtype=np.uint32))


def test_a_system_that_forbids_them_is_obeyed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    monkeypatch.setattr(huge_pages, "THP", tmp_path / "enabled")
    monkeypatch.setattr(huge_pages, "SMAPS", tmp_path / "must not be read")
    assert use_huge_pages() == 0
    monkeypatch.setattr(huge_pages, "THP", tmp_path / "not there")
    assert use_huge_pages() == 0
