"""The pictures of the pages `understand`, drawn from answers of the bundled model as SVG."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from docs.tools.marks import DOCS

FOLDER = DOCS / "understand"
PAIR = {"text": "我喜欢机器学习。", "text_pair": "It is playful."}
ATTENDED = "the dog when it is old"
TEXTS = [  # of very different lengths, as requests have them
    "tea",
    "my dog is hairy",
    "the cat sleeps",
    "我去上学。",
    "December is the last month of the year.",
    "a cat has four legs and a long tail",
    "they live in new york city",
    "the king and the queen live in an old castle near the sea, where the weather is warm in summer and cold in winter",
]
FIRST, SECOND, LINE = "#4f6bed", "#c2571a", "#777"


def svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    """Text takes the colour of the page around it; the font is that of the system."""
    style = "text{font:13px system-ui,sans-serif;fill:#333}.s{font-size:11px;fill:#666}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    back = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{style}</style>", back, *parts, "</svg>\n"])


def word(x: float, y: float, text: str, *, small: bool = False, anchor: str = "middle") -> str:
    kind = ' class="s"' if small else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> str:
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} rx="3" fill="{colour}" fill-opacity="{opacity:g}"/>'


def pieces(client: httpx.Client) -> str:
    """The tokens of a pair, with their segments and positions."""
    (tokens,) = _post(client, "/tokenize", inputs=[PAIR], details=True)
    wide, left = 46, 86
    parts = [word(8, y, text, anchor="start") for y, text in ((44, "token"), (88, "segment"), (126, "position"))]
    for place, token in enumerate(tokens):
        x, colour = left + place * wide, SECOND if token["segment"] else FIRST
        parts += [box(x, 24, wide - 4, 30, colour, 0.2), word(x + wide / 2 - 2, 44, token["piece"])]
        parts += [box(x, 70, wide - 4, 26, colour, 0.5), word(x + wide / 2 - 2, 88, "AB"[token["segment"]])]
        parts.append(word(x + wide / 2 - 2, 126, str(token["position"])))
    return svg(left + wide * len(tokens) + 8, 144, parts, "the tokens of a pair, their segments and positions")


def attention(client: httpx.Client) -> str:
    """What each token reads in one head, a table of shares: the head in which one word is read most."""
    answer = _post(client, "/attention", inputs=ATTENDED)
    names = [piece["text"] for piece in answer["pieces"]]
    found = np.array(answer["attention"])  # [layers, heads, queries, keys]
    read = found.mean(axis=2) * [not piece["special"] for piece in answer["pieces"]]  # [layers, heads, keys]
    layer, head, _ = np.unravel_index(read.argmax(), read.shape)
    shares, size, left, top = found[layer, head], 46, 70, 44
    title = f"layer {layer}, head {head}: per cent that the token of a row reads of each token"
    parts = [word(8, 14, title, small=True, anchor="start")]
    for row, name in enumerate(names):
        parts += [word(left - 8, top + size * row + 28, name, anchor="end"), word(left + size * (row + 0.5), 34, name)]
        for column, share in enumerate(shares[row]):
            x, y = left + size * column, top + size * row
            parts.append(box(x, y, size - 3, size - 3, FIRST, round(0.04 + 0.96 * share, 2)))
            if share >= 0.1:
                parts.append(f'<text x="{x + 21}" y="{y + 27}" text-anchor="middle">{100 * share:.0f}</text>')
    edge = left + size * len(names) + 8
    return svg(edge, top + size * len(names) + 8, parts, "per cent that each token reads of each token, in one head")


def padding(client: httpx.Client) -> str:
    """The same texts in a rectangle and packed."""
    counts = _post(client, "/tokenize", inputs=TEXTS, count=True)
    longest, total, unit = max(counts), sum(counts), 14
    share = 1 - total / (longest * len(counts))
    parts = [word(8, 20, f"padded: {longest * len(counts)} slots, {share:.0%} of them padding", anchor="start")]
    for row, count in enumerate(counts):
        colour = (FIRST, SECOND)[row % 2]
        parts += [box(8 + unit * at, 30 + 17 * row, unit - 2, 14, colour, 0.75) for at in range(count)]
        parts += [box(8 + unit * at, 30 + 17 * row, unit - 2, 14, LINE, 0.15) for at in range(count, longest)]
    top = 30 + 17 * len(counts) + 30
    parts.append(word(8, top - 10, f"packed: {total} slots, no padding", anchor="start"))
    owners = [row for row, count in enumerate(counts) for _ in range(count)]
    for at, row in enumerate(owners):
        x, y = 8 + unit * (at % longest), top + 17 * (at // longest)
        parts.append(box(x, y, unit - 2, 14, (FIRST, SECOND)[row % 2], 0.75))
    height = top + 17 * (-(-total // longest)) + 10
    return svg(16 + unit * longest, height, parts, "eight texts as a padded rectangle and packed")


def neighbours(client: httpx.Client) -> str:
    """The vector of a text alone and among others, number by number."""
    alone = np.array(_post(client, "/embed", inputs=TEXTS[1])[0], np.float32)
    among = np.array(_post(client, "/embed", inputs=TEXTS)[1], np.float32)
    shown, middle, scale = 96, 70, 24
    parts = [word(8, 18, f'"{TEXTS[1]}", the first {shown} of {len(alone)} numbers of its vector', anchor="start")]
    for place in range(shown):
        high = float(np.clip(abs(alone[place]) * scale, 1, 42))
        y = middle - high if alone[place] > 0 else middle
        parts.append(box(8 + 7 * place, round(y, 1), 5, round(high, 1), FIRST, 0.8))
    most = float(np.abs(alone - among).max())
    text = f"alone, and in one batch with {len(TEXTS) - 1} other texts: largest difference {most:g}"
    parts.append(word(8, 134, text, anchor="start"))
    return svg(16 + 7 * shown, 148, parts, "the numbers of a vector, alone and in a batch")


DRAWN = {"pieces": pieces, "attention": attention, "padding": padding, "neighbours": neighbours}


def drawn(client: httpx.Client) -> Iterator[tuple[Path, str]]:
    """Each picture's file and content."""
    for name, draw in DRAWN.items():
        yield FOLDER / f"{name}.svg", draw(client)


def write(client: httpx.Client) -> None:
    for path, content in drawn(client):
        path.write_text(content, "utf-8")


def _post(client: httpx.Client, path: str, **body: Any) -> Any:
    return client.post(path, json=body).raise_for_status().json()
