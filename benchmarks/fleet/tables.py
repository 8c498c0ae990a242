"""`python -m benchmarks.fleet.tables --price 1`: rewrites the tables of docs/operate/fleet.md from results/*.json."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fleet.experiments import BOUNDS_MS, PERCENTILES
from benchmarks.fleet.machines import RESULTS
from benchmarks.tables import fill

DOCUMENT = Path(__file__).parents[2] / "docs" / "operate" / "fleet.md"
PRICE = 1.0  # of a machine hour; an input, not a fact
Rows = Iterator[Sequence[str]]  # the header first


def curve(found: Mapping[str, Any]) -> Rows:
    yield "machine, texts/s", *(f"{name}, ms" for name in PERCENTILES), *(f"{name}, simulated" for name in PERCENTILES)
    for name, rows in found["curve"].items():
        for row in rows:
            columns = (*PERCENTILES, *(f"{key} simulated" for key in PERCENTILES))
            yield f"{name}, {row['offered']:,.0f}", *(_number(row[column]) for column in columns)


def cost(price: float) -> Rows:
    """From `benchmarks.peers`: all servers on the same machine."""
    unit = f"price, {price:g} an hour"
    yield "server", "short texts/s", "passages/s", "hours for 1 M short texts", unit, f"{unit}: 1 M passages"
    passages = _peers("passages")
    for server, rate in _peers("STS-B").items():
        hours, of_passages = (1e6 / one / 3600 for one in (rate, passages[server]))
        yield server, *map(_number, (rate, passages[server], hours, price * hours, price * of_passages))


def replicas(found: Mapping[str, Any]) -> Rows:
    yield "requests/s", *(f"p99 <= {bound} ms" for bound in BOUNDS_MS)
    full = found["texts_per_second"]["BERT-base int8"]
    for load, needed in found["replicas"].items():
        yield f"{int(load):,}", *(f"{number} ({int(load) / number / full:.0%})" for number in needed.values())


def balancers(found: Mapping[str, Any]) -> Rows:
    yield "p50 and p99, ms", *next(iter(found["balancers"].values()))
    for policy, by_load in found["balancers"].items():
        yield policy, *map(_pair, by_load.values())


def instances(found: Mapping[str, Any]) -> Rows:
    yield "policy, instances of the balancer", "p50 and p99, ms"
    for name, waits in found["instances"].items():
        yield name, _pair(waits)


def retries(found: Mapping[str, Any]) -> Rows:
    yield "refused clients", *next(iter(found["retries"].values()))
    for kind, one in found["retries"].items():
        yield kind, *map(_number, one.values())


def rewrite(text: str, price: float = PRICE) -> str:
    found = json.loads((RESULTS / "fleet.json").read_text("utf-8"))["result"]
    tables = {one.__name__: one(found) for one in (curve, replicas, balancers, instances, retries)}
    return fill(text, {**tables, "cost": cost(price)})


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _pair(waits: Sequence[float]) -> str:
    return " / ".join(f"{wait:,.0f}" for wait in waits)


def _peers(mix: str) -> dict[str, float]:
    """Texts a second by server."""
    result = json.loads((RESULTS / "peers.json").read_text("utf-8"))["result"]
    rates: dict[str, float] = next(one["texts_per_second"] for name, one in result.items() if name.startswith(mix))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--price", type=float, default=PRICE, help="of a machine hour, in any currency")
    price = parser.parse_args().price
    DOCUMENT.write_text(rewrite(DOCUMENT.read_text("utf-8"), price), "utf-8")


if __name__ == "__main__":
    main()
