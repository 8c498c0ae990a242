"""`python -m benchmarks.harness.charts`: draws results/*.json as results/*.svg; each names its machine.

engine    tokens a second by length mix          (engine.json)
peers     texts a second and p99 by connections  (peers.json)
server    waiting times by offered rate          (server-*.json)

The same JSON gives the same bytes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.machine import RESULTS

STYLE: Any = {
    "svg.hashsalt": "packbert",
    "svg.fonttype": "none",
    "font.size": 9,
    "lines.markersize": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
OURS, OTHERS, BOUND = "#1f5fa8", "#b8b8b8", "#e3d3a4"
WAITS = {"p50 ms": "#1f5fa8", "p90 ms": "#7a6bb5", "p99 ms": "#c2643f"}
FAMILIES = {
    "ours": OURS,
    "infinity torch": "#c2643f",
    "infinity onnx": "#7a6bb5",
    "litserve": "#4a9a6a",
    "sentence": "#8a8a8a",
    "candle": "#c9a227",
}
Bars = Mapping[str, float]


def main() -> None:
    mpl.rcParams.update(STYLE)
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        for prefix, draw in CHARTS.items():
            if path.stem.startswith(prefix) and content["result"]:
                save(draw(content), path.with_suffix(".svg"))


def engine(content: Mapping[str, Any]) -> Figure:
    mixes = {
        name: {label: rate for label, rate in one["tokens_per_second"].items() if label != "tokens"}
        for name, one in content["result"].items()
    }
    return bars(mixes, f"The engine alone: tokens a second\n{machine(content)}")


def peers(content: Mapping[str, Any]) -> Figure:
    """Texts a second over p99, by connections; a column for each mix, a line for each server."""
    mixes, figures = content["result"], {"texts_per_second": "texts a second", "p99_ms": "p99, ms"}
    figure = Figure(figsize=(9, 6), layout="constrained")
    figure.suptitle(f"Same weights, one text a request, by connections\n{machine(content)}", fontsize=9)
    panels = figure.subplots(len(figures), len(mixes), sharex=True)
    for row, (name, label) in zip(panels, figures.items(), strict=True):
        for axes, (mix, by_connections) in zip(row, mixes.items(), strict=True):
            for contender in next(iter(by_connections.values()))[name]:
                values = [one[name][contender] for one in by_connections.values()]
                line = "--" if contender.endswith("int8") else "-"
                axes.plot(list(by_connections), values, f"o{line}", color=family(contender), label=contender)
            axes.set_yscale("log")
            axes.set_title(mix)
        row[0].set_ylabel(label)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def server(content: Mapping[str, Any]) -> Figure:
    """Waiting times over the offered rate, a panel for each mix."""
    mixes = {name: one["open_loop"] for name, one in content["result"].items() if one["open_loop"]}
    figure, panels = frame(
        list(mixes),
        f"{content['artifact']} under a Poisson stream: ms from the intended moment\n{machine(content)}",
        height=2.4,
    )
    for axes, rows in zip(panels, mixes.values(), strict=True):
        for wait, colour in WAITS.items():
            axes.plot(
                [row["offered"] for row in rows],
                [row[wait] for row in rows],
                marker="o",
                color=colour,
                label=wait,
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("texts a second offered")
    if mixes:
        panels[0].legend(frameon=False)
    return figure


def bars(mixes: Mapping[str, Bars], title: str) -> Figure:
    """A panel for each mix, a bar for each contender, ours in blue."""
    figure, panels = frame(list(mixes), title, height=0.7 + 0.24 * max(map(len, mixes.values())))
    for axes, values in zip(panels, mixes.values(), strict=True):
        drawn = axes.barh(list(values), list(values.values()), color=[colour(name) for name in values], height=0.7)
        axes.bar_label(drawn, fmt="{:,.3g}" if max(values.values()) < 100 else "{:,.0f}", padding=2)
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.margins(x=0.2)
        axes.spines["bottom"].set_visible(False)
    for axes in panels:
        axes.tick_params(axis="y", length=0)
    return figure


def frame(names: Sequence[str], title: str, *, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each name, two in a row."""
    rows = (len(names) + 1) // 2
    figure = Figure(figsize=(9, 0.6 + max(1, rows) * height), layout="constrained")
    figure.suptitle(title, fontsize=9)
    panels = [figure.add_subplot(rows, 2, i + 1, title=name) for i, name in enumerate(names)]
    return figure, panels


def colour(name: str) -> str:
    if name.startswith("ceiling"):
        return BOUND
    return OURS if name.startswith(("ours", "ragged")) else OTHERS


def family(contender: str) -> str:
    """The colour of a server in all its precisions."""
    return next(colour for name, colour in FAMILIES.items() if contender.startswith(name))


def machine(content: Mapping[str, Any]) -> str:
    about = content["machine"]
    return f"{about['cores']} cores of {about['cpu']} ({', '.join(newest(about['instructions']))}), {about['date']}"


def newest(instructions: Sequence[str]) -> Iterator[str]:
    """The instruction sets that decide how fast matrices are multiplied."""
    for name in ("amx_int8", "avx512_vnni", "avx512f", "avx2"):
        if name in instructions:
            yield name


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    text = "\n".join(line.rstrip() for line in path.read_text("utf-8").splitlines())
    path.write_text(text + "\n", "utf-8")


CHARTS = {"engine": engine, "peers": peers, "server": server}

if __name__ == "__main__":
    main()
