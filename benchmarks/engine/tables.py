"""The tables of `benchmarks.engine` and `benchmarks.engine.accuracy`, from results/engine.json and accuracy.json.

`on` of a table names another machine, whose results are in engine-ON.json and accuracy-ON.json.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.engine.contenders.turns import CEILING, OURS, PRECISIONS, Rates, compared
from benchmarks.harness.machine import RESULTS

SHOWN = {  # mix -> shown name
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
Rows = Iterator[Sequence[str]]  # the header first


def engine(on: str = "", columns: Sequence[str] = ("ceiling", *OTHERS)) -> Rows:
    """Ours, compared within its precision; int8 only with engines of at least its accuracy."""
    yield "mix", "precision", "tokens/s", *(f"/ {what}" for what in columns)
    for mix, rates in _measured(on):
        for precision in _our_precisions(rates):
            names = dict(compared(rates, precision, is_accurate(precision, on)))
            cells = (_ratio(rates, precision, (what, names[what])) for what in columns)
            yield SHOWN[mix], precision, _rate(rates, precision), *cells


def families() -> Rows:
    yield "figure", "layers", "found", "must be"
    for name, one in _read("families")["result"].items():
        yield (
            name,
            str(one["layers"]),
            f"{one['found']:.2g}" if one["found"] < 0.01 else f"{one['found']:.2f}",
            one["must"],
        )


def engine_headline() -> Rows:
    about = _read("engine")["machine"]
    sets = ", ".join(name for name in about["instructions"] if name.startswith(("avx512_", "amx_")))
    yield (
        f"{about['cores']} cores of {about['cpu']} ({sets})",
        "precision",
        "tokens/s",
        *(f"/ {what}" for what in OTHERS),
    )
    for mix, rates in _measured():
        for precision in _our_precisions(rates) if mix in HEADLINE else ():
            names = dict(compared(rates, precision, is_accurate(precision)))
            cells = (_ratio(rates, precision, (what, names[what])) for what in OTHERS)
            yield HEADLINE[mix], precision, _rate(rates, precision), *cells


def engine_rates(on: str = "") -> Rows:
    """Tokens per second of every contender."""
    mixes = dict(_measured(on))
    yield "tokens/s", *(SHOWN[mix] for mix in mixes)
    names = dict.fromkeys(name for rates in mixes.values() for name in rates if name != "tokens")
    for name in names:
        yield name, *(f"{rates[name]:,.0f}" if name in rates else "" for rates in mixes.values())


def engine_alone() -> Rows:
    """Milliseconds of one text alone: ours, and the fastest other engine of at least its accuracy."""
    yield "alone", "precision", "ours, ms", "best other, ms", "ours / best other"
    for mix, rates in _measured():
        for precision in _our_precisions(rates) if mix.startswith("alone") else ():
            other = dict(compared(rates, precision, is_accurate(precision)))["best other"]
            if not other:
                continue
            ours, least = (1000 * rates["tokens"] / rates[name] for name in (f"{OURS} {precision}", other))
            yield SHOWN[mix], precision, f"{ours:.1f}", f"{least:.1f} ({_engine(other)})", f"{ours / least:.2f}"


def engine_peak() -> Rows:
    """The products of the linear layers in operations a second, as shares of the processor's peak."""
    content = _read("engine")
    peaks, threads, size = (content[key] for key in ("peak_operations_per_second_and_core", "threads", "size"))
    hidden, inner, layers = (size[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    of_token = 2 * layers * (4 * hidden * hidden + 2 * hidden * inner)
    columns = [(what, precision) for precision in peaks for what in (CEILING, OURS)]
    columns = [one for one in columns if any(" ".join(one) in rates for _, rates in _measured())]
    yield "share of the peak", *(" ".join(one) for one in columns)
    yield "peak, GOP/s a core", *(f"{peaks[precision] / 1e9:,.0f}" for _, precision in columns)
    for mix, rates in _measured():
        shares = (rates.get(f"{what} {one}", 0.0) * of_token / threads / peaks[one] for what, one in columns)
        yield SHOWN[mix], *(f"{share:.0%}" if share else "" for share in shares)


def accuracy(on: str = "") -> Rows:
    """Spearman on the STS benchmark, and the cosines to our fp32."""
    yield "engine", "Spearman", "lowest cosine to fp32", "mean cosine to fp32"
    for name, one in _read("accuracy", on)["result"].items():
        lowest, mean = (f"{one[f'{which}_cosine_to_fp32']:.5f}" for which in ("lowest", "mean"))
        yield name, f"{one['spearman']:.4f}", lowest, mean


def is_accurate(precision: str, on: str = "") -> Callable[[str], bool]:
    """Whether a contender's vectors are as near to fp32 as ours of `precision`; not where its accuracy is unknown."""
    results = _read("accuracy", on)["result"]
    measured: dict[str, float] = {name: one["mean_cosine_to_fp32"] for name, one in results.items()}
    needed = measured.get(f"{OURS} {precision}", 1.0) - AS_ACCURATE

    def answer(name: str) -> bool:
        return measured.get(name.replace(" padded ", " buckets "), 0.0) >= needed

    return answer


def _measured(on: str = "") -> Iterator[tuple[str, Rates]]:
    found: Mapping[str, Any] = _read("engine", on)["result"]
    for mix in SHOWN:
        if mix in found:
            yield mix, found[mix]["tokens_per_second"]


def _our_precisions(rates: Rates) -> list[str]:
    return [precision for precision in PRECISIONS if f"{OURS} {precision}" in rates]


def _rate(rates: Rates, precision: str) -> str:
    return f"{rates[f'{OURS} {precision}']:,.0f}"


def _ratio(rates: Rates, precision: str, one: tuple[str, str]) -> str:
    what, name = one
    if not name:
        return ""
    ratio = rates[f"{OURS} {precision}"] / rates[name]
    shown = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
    return shown if what == "ceiling" else f"{shown} ({_engine(name)})"


def _engine(name: str) -> str:
    """The name without its precision."""
    return name.rsplit(" ", 1)[0]


def _read(name: str, on: str = "") -> Any:
    file = f"{name}-{on}.json" if on else f"{name}.json"
    return json.loads((RESULTS / file).read_text("utf-8"))
