"""The tables of benchmarks/README.md, row by row, as the JSON under benchmarks/results has them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ENGINE = (
    "8 of 128",
    "32 of 5..60",
    "STS-B, 64 sentences",
    "16 like MS MARCO",
    "3 of 512",
    "1 of 300, 31 of 12",
    "1 of 16 alone",
)
MIXES = {"STS-B": "STS-B", "32 of 5..60": "mixed", "like MS MARCO": "passages", "1 of 300, 31 of 12": "long tail"}
SERVED = {
    "BERT-base fp32": ("base-fp32", "STS-B"),
    "BERT-base int8": ("base-int8", "STS-B"),
    "BERT-base int8, like MS MARCO": ("base-int8", "passages"),
    "bundled, fp32": ("sample", "STS-B"),
}
STARTED = {"BERT-base fp32": "fp32", "BERT-base int8": "int8", "bundled, fp32": "bundled"}
WAITS = ("p50 ms", "p90 ms", "p99 ms", "p99.9 ms")


def engine() -> Iterator[str]:
    for name, one in zip(ENGINE, read("engine").values(), strict=True):
        of_ceiling, *others = (list(one["ratios"].values())[part] for part in (slice(2), *range(2, 5)))
        yield row(name, *(f"{ratio:.2f}" for ratio in of_ceiling), *map(times, others))


def server() -> Iterator[str]:
    for name, (artifact, mix) in SERVED.items():
        one = mix_of(read(f"server-{artifact}"), mix)
        rates, ratios, cost, single = one["texts_per_second"], one["ratios"], one["cost"], one["single"]
        yield row(
            name,
            three(rates["engine"]),
            "; ".join(three(rates[way]) for way in ("json", "npy", "base64")),
            f"{ratios['json / engine']:.2f}",
            f"{ratios['fill-mask cost / embed']:.2f}",
            f"{cost['outside us']:,.0f} ({cost['loop us']:,.0f}, {cost['tokenizing us']:.0f})",
            f"{cost['client us']:.0f}",
            f"{single['engine p50 ms']:.1f}, {single['server p50 ms']:.1f} ({single['server / engine']:.2f})",
        )


def streams() -> Iterator[str]:
    for name, (artifact, mix) in SERVED.items():
        for one in mix_of(read(f"server-{artifact}"), mix)["open_loop"]:
            yield row(name, three(one["offered"]), three(one["achieved"]), *(times(one[wait]) for wait in WAITS))


def overhead() -> Iterator[str]:
    """Of one connection and of 32."""
    for name, both in read("overhead")["base-fp32"].items():
        columns = {column: [both[connections][column] for connections in ("1", "32")] for column in both["1"]}
        tokenizing = "; ".join(f"{us:.0f}" for us in columns["tokenizing"]) if any(columns["tokenizing"]) else ""
        loop, rest, floor, client, floors = (
            "; ".join(f"{us:.0f}" for us in columns[column])
            for column in ("loop", "rest", "floor", "client", "client of floor")
        )
        yield row(
            name,
            loop,
            tokenizing,
            rest,
            floor,
            "; ".join(f"{ratio:.1f}" for ratio in columns["rest / floor"]),
            client,
            floors,
        )


def peers() -> Iterator[str]:
    for name, mix in MIXES.items():
        one = mix_of(read("peers"), mix)
        yield row(
            name,
            *(f"{rate:.3g} ({one['p50_ms'][peer] / 1000:.2g} s)" for peer, rate in one["texts_per_second"].items()),
        )
    for name, mix in MIXES.items():
        one = mix_of(read("peers"), mix)
        ratios = zip(one["ours fp32 / peer"].values(), one["ours int8 / peer"].values(), strict=True)
        yield row(name, *(f"{fp32:.2g}; {int8:.2g}" for fp32, int8 in list(ratios)[2:]))


def start() -> Iterator[str]:
    for name, model in STARTED.items():
        for shown, key in ((name, model), ("the same, `--prepacked`", f"{model}, prepacked")):
            one = read("start")[key]
            alone = ", ".join(f"{one[what]:.0f}" for what in ("resident", "alone", "own"))
            yield row(shown, f"{one['ready_seconds']:.2g}", alone, f"{one['both']:,.0f}")


def layers() -> Iterator[str]:
    found = read("layers")
    for number, products in enumerate(found["alone_in_int8"]):
        yield row(f"layer {number}", *(f"{one:.2f}" for one in products))
    yield row("the whole column in fp32, all others in int8", *(f"{one:.1f}" for one in found["alone_in_fp32"]))


def read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["result"]
    return result


def mix_of(result: Mapping[str, Any], start: str) -> Any:
    return next(one for name, one in result.items() if name.startswith(start))


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def times(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def three(number: float) -> str:
    """Three digits of it, or more where it has them before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


TABLES = {table.__name__: table for table in (engine, server, streams, overhead, peers, start, layers)}
