"""`python -m benchmarks.tables`: rewrites the tables of the pages from the JSON under benchmarks/results.

Each table stands between `<!-- table NAME -->` and `<!-- /table -->`; NAME is a key of TABLES. The text outside the
marks does not change.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine import tables as of_engine

RESULTS = Path(__file__).parent / "results"
PAGES = (Path(__file__).parent / "README.md", *sorted(RESULTS.glob("*.md")))
MARKED = re.compile(r"(?P<begin><!-- table (?P<name>[a-z0-9-]+) -->\n).*?(?P<end><!-- /table -->)", re.DOTALL)
MIXES = {"STS-B": "STS-B", "like MS MARCO": "passages", "1 of 300, 31 of 12": "long tail"}
PEERS = "peers"  # the file of the comparison with all servers
PEER_CONNECTIONS = "32"  # at which servers are compared
SERVED = {  # shown name -> file server-*.json, mix
    "BERT-base fp32": ("base-fp32", "STS-B"),
    "BERT-base int8": ("base-int8", "STS-B"),
    "BERT-base int8, like MS MARCO": ("base-int8", "passages"),
    "bundled, fp32": ("sample", "STS-B"),
}
STARTED = {"BERT-base fp32": "fp32", "BERT-base int8": "int8", "bundled, fp32": "bundled"}
PERCENTILES = ("p50 ms", "p90 ms", "p99 ms", "p99.9 ms")
COST_COLUMNS = ("loop", "tokenizing", "rest", "floor", "rest / floor", "client", "client of floor")
Rows = Iterator[Sequence[str]]  # the header first


def likelihood() -> Rows:
    """The likelihood of one sentence, beside as many texts of its length."""
    yield "artifact", "tokens", "score, ms", "score / fill-mask", "score / embed"
    for name, by_length in _read("likelihood").items():
        for length, one in by_length.items():
            ratios = (f"{one[f'score / {other}']:.2f}" for other in ("fill-mask", "embed"))
            yield name, length, _three_digits(one["score ms"]), *ratios


def server_rates() -> Rows:
    """Answered texts a second, by form of the answer, and two ratios."""
    yield "texts/s", "engine alone", "JSON", "NPY", "base64", "JSON / engine", "cost of fill-mask / embed"
    for name, one in _served():
        rates, ratios = one["texts_per_second"], one["ratios"]
        yield (
            name,
            *(_three_digits(rates[form]) for form in ("engine", "json", "npy", "base64")),
            f"{ratios['json / engine']:.2f}",
            f"{ratios['fill-mask cost / embed']:.2f}",
        )


def server_cost() -> Rows:
    """Processor time of one request."""
    yield "us a request", "event loop", "tokenizing", "event loop less tokenizing", "client"
    for name, one in _served():
        parts = (one["cost"][f"{part} us"] for part in ("loop", "tokenizing", "outside", "client"))
        yield name, *(f"{us:,.0f}" for us in parts)


def server_single() -> Rows:
    """The median time of one text of 16 tokens without any other load."""
    yield "16 tokens alone", "engine, ms", "server, ms", "server / engine"
    for name, one in _served():
        single = one["single"]
        milliseconds = (f"{single[f'{whose} p50 ms']:.1f}" for whose in ("engine", "server"))
        yield name, *milliseconds, f"{single['server / engine']:.2f}"


def streams() -> Rows:
    yield "Poisson stream", "offered/s", "achieved/s", *PERCENTILES
    for name, one in _served():
        for stream in one["open_loop"]:
            rates = (_three_digits(stream[rate]) for rate in ("offered", "achieved"))
            yield name, *rates, *(_two_digits(stream[percentile]) for percentile in PERCENTILES)


def overhead() -> Rows:
    """A row for each request and number of connections."""
    yield "us a request", "connections", *COST_COLUMNS[:-1], "client of the floor"
    for name, by_connections in _read("overhead")["base-fp32"].items():
        for connections, one in by_connections.items():
            cells = (f"{one[column]:.{'/' in column:d}f}" for column in COST_COLUMNS)
            yield name, connections, *("" if cell == "0" else cell for cell in cells)


def parts() -> Rows:
    """Processor time of a request without the model, by part, before and after a change."""
    before, now = _read("parts")["before"], _read("parts")["now"]
    yield "us a request", "before", "now"
    for part, us in now.items():
        yield part, f"{before[part]:.0f}", f"{us:.0f}"


def versions() -> Rows:
    """Both versions and their ratio, by number of connections."""
    yield "connections", "before, us a request", "now, us", "ratio", "before, answers/s", "now, answers/s"
    for connections, one in _read("versions-cost")["BERT-base int8"].items():
        us, rate = (f"{one[f'this, {unit}']:,.0f}" for unit in ("us", "1/s"))
        before, rate_before = (f"{one[f'other, {unit}']:,.0f}" for unit in ("us", "1/s"))
        yield connections, before, us, f"{one['ratio, us']:.2f}", rate_before, rate


def peers_rates(file: str = PEERS) -> Rows:
    yield "texts/s", "connections", *_contenders(file)
    for mix, connections, one in _compared(file):
        yield mix, connections, *(f"{rate:.3g}" for rate in one["texts_per_second"].values())


def peers_latency() -> Rows:
    yield "p99, ms", "connections", *_contenders()
    for mix, connections, one in _compared():
        yield mix, connections, *(_three_digits(milliseconds) for milliseconds in one["p99_ms"].values())


def peers_cost() -> Rows:
    """Processor time a text by mix at PEER_CONNECTIONS, and the most memory of all turns."""
    cells = list(_compared())
    alike = {mix: one for mix, connections, one in cells if connections == PEER_CONNECTIONS}
    yield "server", *(f"{mix}, processor ms a text" for mix in alike), "memory, MiB"
    for name in _contenders():
        memory = max(one["memory_mib"][name] for *_, one in cells)
        yield name, *(f"{one['processor_ms'][name]:.3g}" for one in alike.values()), f"{memory:,.0f}"


def peers_ratios(file: str = PEERS) -> Rows:
    """How many times as many texts a second as each other server, at PEER_CONNECTIONS."""
    yield "ours / peer", "ours", *_contenders(file)[2:]
    for precision in ("fp32", "int8"):
        for mix, connections, one in _compared(file):
            if connections == PEER_CONNECTIONS:
                ratios = list(one[f"ours {precision} / peer"].values())[2:]
                yield mix, precision, *(f"{ratio:.2g}" for ratio in ratios)


def overload() -> Rows:
    yield "scenario", "what", "measured", "must be", "holds"
    for one in [*_read("overload"), *_read("overload-memory")]:
        holds = {None: "", True: "yes", False: "no"}[one["holds"]]
        yield one["scenario"], one["what"], _three_digits(one["measured"]), one["bound"], holds


def start() -> Rows:
    """Memory in MiB."""
    sizes = {"resident": "resident", "alone": "proportional", "own": "private", "both": "two processes, proportional"}
    yield "artifact", "packed weights", "seconds to ready", *sizes.values()
    for name, model in STARTED.items():
        for packed, key in (("no", model), ("yes", f"{model}, prepacked")):
            one = _read("start")[key]
            yield name, packed, f"{one['ready_seconds']:.2g}", *(f"{one[size]:,.0f}" for size in sizes)


def layers() -> Rows:
    yield "alone in int8", "query", "key and value", "attention output", "intermediate", "feed-forward output"
    costs = _read("layers")
    for number, products in enumerate(costs["alone_in_int8"]):
        yield f"layer {number}", *(f"{cost:.2f}" for cost in products)
    column_in_fp32 = "the whole column in fp32, all others in int8"
    yield column_in_fp32, *(f"{cost:.1f}" for cost in costs["alone_in_fp32"])


TABLES: dict[str, Callable[[], Rows]] = {
    table.__name__.replace("_", "-"): table
    for table in (
        of_engine.accuracy,
        of_engine.engine,
        of_engine.engine_alone,
        of_engine.engine_headline,
        of_engine.engine_peak,
        of_engine.engine_rates,
        of_engine.families,
        likelihood,
        server_rates,
        server_cost,
        server_single,
        streams,
        overhead,
        parts,
        versions,
        peers_rates,
        peers_latency,
        peers_cost,
        peers_ratios,
        overload,
        start,
        layers,
    )
} | {
    "peers-rates-avx512": partial(peers_rates, "peers-avx512"),
    "peers-ratios-avx512": partial(peers_ratios, "peers-avx512"),
    "accuracy-amx": partial(of_engine.accuracy, "amx"),
    "engine-amx": partial(of_engine.engine, "amx", ("sorted batches", "best other")),
    "accuracy-avx2": partial(of_engine.accuracy, "avx2"),
    "engine-avx2": partial(of_engine.engine, "avx2", ("sorted batches", "best other")),
    "engine-rates-avx2": partial(of_engine.engine_rates, "avx2"),
}


def rewrite(text: str) -> str:
    """`text` with each marked table as the results have it; raises KeyError where a mark names no table."""
    return fill(text, {name: table() for name, table in TABLES.items()})


def fill(text: str, tables: Mapping[str, Iterable[Sequence[str]]]) -> str:
    """`text` with the rows of `tables` between their marks; raises KeyError where a mark names none of them."""

    def one(marked: re.Match[str]) -> str:
        return marked["begin"] + markdown(tables[marked["name"]]) + marked["end"]

    return MARKED.sub(one, text)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; the first row is the header."""
    header, *others = rows
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *others))


def _served() -> Iterator[tuple[str, Any]]:
    """What `benchmarks.server` measured, by shown name."""
    for name, (artifact, mix) in SERVED.items():
        yield name, _find_mix(_read(f"server-{artifact}"), mix)


def _compared(file: str = PEERS) -> Iterator[tuple[str, str, Any]]:
    """What `benchmarks.peers` measured, by shown name of the mix and by connections."""
    for name, mix in MIXES.items():
        for connections, one in _find_mix(_read(file), mix).items():
            yield name, connections, one


def _contenders(file: str = PEERS) -> list[str]:
    return list(next(_compared(file))[2]["texts_per_second"])


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["result"]


def _find_mix(result: Mapping[str, Any], start: str) -> Any:
    return next(one for name, one in result.items() if name.startswith(start))


def _two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def _three_digits(number: float) -> str:
    """Three significant digits, or all digits before the point where there are more."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewrite(page.read_text("utf-8")), "utf-8")
