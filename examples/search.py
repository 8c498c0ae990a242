"""Finds the lines of a file that mean the same as a query: python examples/search.py FILE QUERY [URL]

The vectors are the means of a text's tokens. A sentence model finds better lines than the bundled one:
`packbert serve BAAI/bge-small-zh-v1.5` for Chinese, `sentence-transformers/all-MiniLM-L6-v2` for English.
"""

import sys
from pathlib import Path

from packbert import Client

SHOWN = 5


def search(lines: list[str], query: str, client: Client) -> list[tuple[float, str]]:
    """The lines with their cosines, the nearest first."""
    vectors = client.embed([query, *lines], pooling="mean", normalize=True, truncate=True)
    cosines = vectors[1:] @ vectors[0]
    return [(float(cosines[place]), lines[place]) for place in cosines.argsort()[::-1]]


def main(file: str, query: str, url: str = "http://127.0.0.1:8080") -> None:
    lines = [line.strip() for line in Path(file).read_text("utf-8").splitlines() if line.strip()]
    with Client(url) as client:
        for cosine, line in search(lines, query, client)[:SHOWN]:
            print(f"{cosine:.3f}  {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
