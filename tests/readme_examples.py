"""The requests in README.md and README.zh.md, and the answers printed under them.

python -m tests.readme_examples ARTIFACT       writes the service's current answers into both
"""

import json
import re
import sys
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.harness.process import ServiceProcess
from tests.paths import README

PAGES = (README, README.with_suffix(".zh.md"))
EXAMPLE = re.compile(r"^\$ curl localhost:8080(?P<path>/\S+) -d '(?P<body>.+)'\n(?P<answer>[\[{].*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    path: str
    body: Any
    answer: Any


def examples() -> list[Example]:
    found = [one for page in PAGES for one in EXAMPLE.finditer(page.read_text("utf-8"))]
    return [Example(one["path"], json.loads(one["body"]), json.loads(one["answer"])) for one in found]


def main(artifact: str) -> None:
    with ServiceProcess({"BERT_ARTIFACT": artifact}) as process, httpx.Client(base_url=process.url) as client:

        def answered(example: re.Match[str]) -> str:
            answer = client.post(example["path"], json=json.loads(example["body"])).text
            return example[0].removesuffix(example["answer"]) + answer

        for page in PAGES:
            page.write_text(EXAMPLE.sub(answered, page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
