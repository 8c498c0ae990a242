"""benchmarks/README.md says what was measured: its tables are those of the JSON beside it."""

import pytest

from benchmarks.tables import RESULTS, TABLES

LINES = (RESULTS.parent / "README.md").read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_every_row_of_its_results_in_their_order(name: str) -> None:
    rows = list(TABLES[name]())
    assert rows == [line for line in LINES if line in rows]
