"""Reads STS-B: pairs of sentences with a human score. They are measured with and never trained on."""

import csv
import gzip
from pathlib import Path

Record = dict[str, str]  # split, score, sentence1, sentence2


def read_table(path: Path) -> list[Record]:
    """The rows of stsbenchmark.tsv.gz."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
