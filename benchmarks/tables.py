"""`python -m benchmarks.tables`: rewrites the tables of the pages from the JSON under benchmarks/results.

Each table stands between `<!-- table NAME -->` and `<!-- /table -->`; NAME is a key of TABLES. The text outside the
marks does not change.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness.machine import RESULTS

PAGES = (RESULTS.parent / "README.md", *sorted(RESULTS.glob("*.md")))
MARKED = re.compile(r"(?P<begin><!-- table (?P<name>[a-z0-9-]+) -->\n).*?(?P<end><!-- /table -->)", re.DOTALL)
PRECISIONS = ("fp32", "bf16", "int8")
ENGINE_MIXES = {  # mix -> shown name
    "equal: 8 of 128": "8 of 128",
    "mixed: 32 of 5..60": "32 of 5..60",
    "STS-B: 64 sentences": "STS-B, 64 sentences",
    "passages: 16 like MS MARCO": "16 like MS MARCO",
    "documents: 3 of 512": "3 of 512",
    "long tail: 1 of 300, 31 of 12": "1 of 300, 31 of 12",
    "longest: 1 of 512, 31 of 12": "1 of 512, 31 of 12",
    "alone: 1 of 16": "1 of 16 alone",
    "alone: 1 of 128": "1 of 128 alone",
}
HEADLINE = {
    "mixed: 32 of 5..60": "32 texts of 5 to 60 tokens",
    "STS-B: 64 sentences": "64 sentences of STS-B's lengths",
    "passages: 16 like MS MARCO": "16 passages of MS MARCO's lengths",
}
AS_ACCURATE = 1e-4  # by how much the mean cosine to fp32 of an equally accurate engine may be lower
OTHERS = ("one padded batch", "sorted batches", "best other")
MIXES = {"STS-B": "STS-B", "like MS MARCO": "passages", "1 of 300, 31 of 12": "long tail"}
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
Rates = Mapping[str, float]  # tokens a second by contender
Rows = Iterator[Sequence[str]]  # the header first


def engine() -> Rows:
    """Ours, compared within its precision; int8 only with engines of at least its accuracy."""
    columns = ("ceiling", *OTHERS)
    yield "mix", "precision", "tokens/s", *(f"/ {what}" for what in columns)
    for mix, precision, rates in _of_engine():
        names = compared(rates, precision)
        cells = (_ratio(rates, precision, what, names[what]) for what in columns)
        yield ENGINE_MIXES[mix], precision, _rate(rates, precision), *cells


def engine_headline() -> Rows:
    about = _content("engine")["machine"]
    sets = ", ".join(name for name in about["instructions"] if name.startswith(("avx512_", "amx_")))
    title = f"{about['cores']} cores of {about['cpu']} ({sets})"
    yield title, "precision", "tokens/s", *(f"/ {what}" for what in OTHERS)
    for mix, precision, rates in _of_engine(HEADLINE):
        names = compared(rates, precision)
        cells = (_ratio(rates, precision, what, names[what]) for what in OTHERS)
        yield HEADLINE[mix], precision, _rate(rates, precision), *cells


def engine_rates() -> Rows:
    """Tokens per second of every contender."""
    found = {shown: _read("engine")[mix]["tokens_per_second"] for mix, shown in ENGINE_MIXES.items()}
    yield "tokens/s", *found
    for name in dict.fromkeys(name for rates in found.values() for name in rates if name != "tokens"):
        yield name, *(f"{rates[name]:,.0f}" if name in rates else "" for rates in found.values())


def engine_alone() -> Rows:
    """Milliseconds of one text alone: ours, and the fastest other engine of at least its accuracy."""
    yield "alone", "precision", "ours, ms", "best other, ms", "ours / best other"
    for mix, precision, rates in _of_engine({mix for mix in ENGINE_MIXES if mix.startswith("alone")}):
        if other := compared(rates, precision)["best other"]:
            ours, least = (1000 * rates["tokens"] / rates[name] for name in (f"ours {precision}", other))
            yield ENGINE_MIXES[mix], precision, f"{ours:.1f}", f"{least:.1f} ({_engine(other)})", f"{ours / least:.2f}"


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


def peers_rates() -> Rows:
    yield "texts/s", "connections", *_contenders()
    for mix, connections, one in _peers():
        yield mix, connections, *(f"{rate:.3g}" for rate in one["texts_per_second"].values())


def peers_latency() -> Rows:
    yield "p99, ms", "connections", *_contenders()
    for mix, connections, one in _peers():
        yield mix, connections, *(_three_digits(milliseconds) for milliseconds in one["p99_ms"].values())


def peers_cost() -> Rows:
    """Processor time a text by mix at PEER_CONNECTIONS, and the most memory of all turns."""
    cells = list(_peers())
    alike = {mix: one for mix, connections, one in cells if connections == PEER_CONNECTIONS}
    yield "server", *(f"{mix}, processor ms a text" for mix in alike), "memory, MiB"
    for name in _contenders():
        memory = max(one["memory_mib"][name] for *_, one in cells)
        yield name, *(f"{one['processor_ms'][name]:.3g}" for one in alike.values()), f"{memory:,.0f}"


def peers_ratios() -> Rows:
    """How many times as many texts a second as each other server, at PEER_CONNECTIONS."""
    yield "ours / peer", "ours", *_contenders()[2:]
    for precision in ("fp32", "int8"):
        for mix, connections, one in _peers():
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


TABLES: dict[str, Callable[[], Rows]] = {
    table.__name__.replace("_", "-"): table
    for table in (
        engine,
        engine_alone,
        engine_headline,
        engine_rates,
        server_rates,
        server_cost,
        server_single,
        streams,
        overhead,
        parts,
        peers_rates,
        peers_latency,
        peers_cost,
        peers_ratios,
        overload,
        start,
    )
}


def rewrite(text: str) -> str:
    """`text` with each marked table as the results have it; raises KeyError if a mark names no table."""
    return MARKED.sub(lambda marked: marked["begin"] + markdown(TABLES[marked["name"]]()) + marked["end"], text)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; the first row is the header."""
    header, *others = rows
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *others))


def compared(rates: Rates, precision: str) -> dict[str, str]:
    """What ours of `precision` is compared with, and the name of that contender, empty if it was not measured.

    Sorted batches and the best other engine count only if their vectors are as near to fp32 as ours.
    """
    names = [name for name in rates if name.endswith(f" {precision}") and not name.startswith(("ours", "ceiling"))]
    accurate = [name for name in names if is_accurate(name, precision)]
    others = {
        "one padded batch": [name for name in names if " padded " in name],
        "sorted batches": [name for name in accurate if " padded " not in name and " ragged " not in name],
        "best other": accurate,
    }
    ceiling = f"ceiling {precision}" if f"ceiling {precision}" in rates else ""
    fastest = {what: max(some, key=rates.__getitem__, default="") for what, some in others.items()}
    return {"ceiling": ceiling} | fastest


def is_accurate(name: str, precision: str) -> bool:
    """Whether a contender's vectors are as near to fp32 as ours of `precision`; false if its accuracy is unknown."""
    results = _read("accuracy")
    measured = {known: one["mean_cosine_to_fp32"] for known, one in results.items()}
    needed = measured.get(f"ours {precision}", 1.0) - AS_ACCURATE
    return bool(measured.get(name.replace(" padded ", " buckets "), 0.0) >= needed)


def _of_engine(mixes: Iterable[str] = tuple(ENGINE_MIXES)) -> Iterator[tuple[str, str, Rates]]:
    """What `benchmarks.engine` measured: mix, precision of ours, and the rates."""
    for mix, found in ((mix, _read("engine")[mix]["tokens_per_second"]) for mix in ENGINE_MIXES if mix in mixes):
        yield from ((mix, precision, found) for precision in PRECISIONS if f"ours {precision}" in found)


def _rate(rates: Rates, precision: str) -> str:
    return f"{rates[f'ours {precision}']:,.0f}"


def _ratio(rates: Rates, precision: str, what: str, name: str) -> str:
    if not name:
        return ""
    ratio = rates[f"ours {precision}"] / rates[name]
    shown = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
    return shown if what == "ceiling" else f"{shown} ({_engine(name)})"


def _engine(name: str) -> str:
    """The name without its precision."""
    return name.rsplit(" ", 1)[0]


def _served() -> Iterator[tuple[str, Any]]:
    """What `benchmarks.server` measured, by shown name."""
    for name, (artifact, mix) in SERVED.items():
        yield name, _find_mix(_read(f"server-{artifact}"), mix)


def _peers() -> Iterator[tuple[str, str, Any]]:
    """What `benchmarks.peers` measured, by shown name of the mix and by connections."""
    for name, mix in MIXES.items():
        for connections, one in _find_mix(_read("peers"), mix).items():
            yield name, connections, one


def _contenders() -> list[str]:
    return list(next(_peers())[2]["texts_per_second"])


def _read(name: str) -> Any:
    return _content(name)["result"]


def _content(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def _find_mix(result: Mapping[str, Any], start: str) -> Any:
    return next(one for name, one in result.items() if name.startswith(start))


def _two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def _three_digits(number: float) -> str:
    """Three significant digits, or all digits before the point if there are more."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewrite(page.read_text("utf-8")), "utf-8")
