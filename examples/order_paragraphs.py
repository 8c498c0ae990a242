"""Puts shuffled paragraphs in order: python examples/order_paragraphs.py FILE [URL]

Paragraphs are separated by empty lines. For each two of them, BERT's next-sentence head says whether the second follows
the first; the order with the highest product of these probabilities wins. The head follows the topic more than the
logic, so expect mistakes, above all of the small bundled model.
"""

import math
import sys
from itertools import pairwise, permutations
from pathlib import Path

from packbert import Client

MOST = 8  # 40,320 orders


def in_order(paragraphs: list[str], client: Client) -> list[str]:
    places = range(len(paragraphs))
    pairs = [(first, second) for first in places for second in places if first != second]
    answers = client.nsp([(paragraphs[first], paragraphs[second]) for first, second in pairs], truncate=True)
    follows = {pair: math.log(answer["is_next"]) for pair, answer in zip(pairs, answers, strict=True)}

    def likelihood(order: tuple[int, ...]) -> float:
        return sum(follows[pair] for pair in pairwise(order))

    return [paragraphs[place] for place in max(permutations(places), key=likelihood)]


def main(file: str, url: str = "http://127.0.0.1:8080") -> None:
    text = Path(file).read_text("utf-8")
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n") if one.strip()]
    if len(paragraphs) > MOST:
        sys.exit(f"{file} has {len(paragraphs)} paragraphs; all orders of at most {MOST} are compared")
    with Client(url) as client:
        print("\n\n".join(in_order(paragraphs, client)))


if __name__ == "__main__":
    main(*sys.argv[1:])
