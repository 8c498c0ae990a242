"""`python -m benchmarks.harness.charts`: draws the pictures of the pages, beside the JSON that they show.

The same JSON gives the same bytes.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
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
SHOWN = ("amx_int8", "avx512_vnni", "avx512f", "avx2")  # instruction sets that decide how fast matrices are multiplied
WAITS = {"p50 ms": "#1f5fa8", "p90 ms": "#7a6bb5", "p99 ms": "#c2643f"}
COLOURS = {  # by the beginning of a server's name
    "ours": "#1f5fa8",
    "infinity torch": "#c2643f",
    "infinity onnx": "#7a6bb5",
    "litserve": "#4a9a6a",
    "sentence": "#8a8a8a",
    "candle": "#c9a227",
}


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
                colour = next(colour for start, colour in COLOURS.items() if contender.startswith(start))
                axes.plot(list(by_connections), values, f"o{line}", color=colour, label=contender)
            axes.set_yscale("log")
            axes.set_title(mix)
        row[0].set_ylabel(label)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def server(content: Mapping[str, Any]) -> Figure:
    """Waiting times over the offered rate, a panel for each mix, two in a row."""
    mixes = {name: one["open_loop"] for name, one in content["result"].items() if one["open_loop"]}
    rows = (len(mixes) + 1) // 2
    figure = Figure(figsize=(9, 0.6 + rows * 2.4), layout="constrained")
    title = f"{content['artifact']} under a Poisson stream: ms from the intended moment\n{machine(content)}"
    figure.suptitle(title, fontsize=9)
    panels = [figure.add_subplot(rows, 2, i + 1, title=name) for i, name in enumerate(mixes)]
    for axes, streams in zip(panels, mixes.values(), strict=True):
        offered = [stream["offered"] for stream in streams]
        for wait, colour in WAITS.items():
            axes.plot(offered, [stream[wait] for stream in streams], marker="o", color=colour, label=wait)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("texts a second offered")
    panels[0].legend(frameon=False)
    return figure


def machine(content: Mapping[str, Any]) -> str:
    about = content["machine"]
    sets = ", ".join(name for name in SHOWN if name in about["instructions"])
    return f"{about['cores']} cores of {about['cpu']} ({sets}), {about['date']}"


def draw(name: str, chart: Callable[[Mapping[str, Any]], Figure]) -> None:
    path = RESULTS / f"{name}.svg"
    chart(json.loads(path.with_suffix(".json").read_text("utf-8"))).savefig(path, metadata={"Date": None})
    text = "\n".join(line.rstrip() for line in path.read_text("utf-8").splitlines())
    path.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    mpl.rcParams.update(STYLE)
    draw("peers", peers)
    draw("server-base-int8", server)
