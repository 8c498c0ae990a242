"""Makes a quiz: python examples/cloze_quiz.py FILE [URL]

A line of FILE has the hidden word in brackets: "December is the last [month] of the year." The wrong answers are the
words that the model finds likeliest in its place; its own share of the right word says how hard the question is.
"""

import random
import sys
from pathlib import Path

from packbert import Client

CHOICES = 4


def question(line: str, client: Client, chance: random.Random) -> str:
    before, _, rest = line.partition("[")
    right, _, after = rest.partition("]")
    text = f"{before}[MASK]{after}"
    proposed = client.fill_mask([text], top_k=3 * CHOICES)[0]
    words = [one["token_str"].replace(" ", "") for one in proposed]
    wrong = [word for word in words if word.isalpha() and word.lower() != right.lower()][: CHOICES - 1]
    (share,) = client.fill_mask([text], targets=[right])[0]
    choices = [right, *wrong]
    chance.shuffle(choices)
    listed = "  ".join(f"{letter}) {choice}" for letter, choice in zip("abcdef", choices, strict=False))
    answer = "abcdef"[choices.index(right)]
    return f"{before}____{after}\n  {listed}\n  answer: {answer}, which the model gives {share['score']:.0%}\n"


def main(file: str, url: str = "http://127.0.0.1:8080") -> None:
    chance = random.Random(0)
    lines = [line.strip() for line in Path(file).read_text("utf-8").splitlines() if line.strip()]
    if faulty := [number for number, line in enumerate(lines, 1) if "[" not in line or "]" not in line]:
        sys.exit(f"{file}: line {faulty[0]} has no word in brackets")
    with Client(url) as client:
        for line in lines:
            print(question(line, client, chance))


if __name__ == "__main__":
    main(*sys.argv[1:])
