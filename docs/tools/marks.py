"""The parts of a page that a command writes: the text between two marks.

<!-- written NAME -->
...
<!-- /written -->
"""

import re
from collections.abc import Callable
from pathlib import Path

from tests.paths import ROOT, SAMPLE

DOCS = ROOT / "docs"
PART = re.compile(r"(?P<begin><!-- written (?P<name>[a-z0-9-]+) -->\n).*?(?P<end><!-- /written -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page but those of the design; of the bundled model's cards, the one that no training command writes."""
    top = [ROOT / name for name in ("README.md", "README.zh-CN.md", "OPERATING.md", "CONTRIBUTING.md")]
    below = sorted(page for page in DOCS.rglob("*.md") if "design" not in page.parts)
    return [*top, SAMPLE / "README.zh-CN.md", *below]


def fill(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """`text` with what `parts` give between their marks; parts of other names stay as they are."""

    def one(found: re.Match[str]) -> str:
        made = parts.get(found["name"])
        return found[0] if made is None else f"{found['begin']}\n{made().strip()}\n\n{found['end']}"

    return PART.sub(one, text)


def names() -> list[str]:
    """Of all parts on all pages."""
    return [found["name"] for page in pages() for found in PART.finditer(page.read_text("utf-8"))]


def markdown_table(*rows: tuple[str, ...]) -> str:
    """The first row is the header."""
    header, *others = rows
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ("---",) * len(header), *others))
