"""`python -m benchmarks.server ARTIFACT`: the whole server over HTTP beside the same engine alone, one text a request.

    engine     the line and the runtime alone, in this process, with twice as many texts as there are connections
    json, ...  as many requests at once as there are connections, each followed by the next: the peak rate, by form of the answer
    fill-mask  the same texts with a mask in place of one word
    null       the same requests to a server that does nothing: a client that were the limit would show here
    open loop  Poisson streams at shares of the peak; latency counts from the moment each request was meant to be sent
    single     a text of 16 tokens on the idle server, and on the engine alone

These take turns, some seconds each, and the median of the rounds counts; ratios are medians of each round's own ratio, because machines drift.
Server and client share this machine's cores, so the server's rate is what is left beside the client; both report processor time.
"""

import argparse
import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tokenizers import Tokenizer

from benchmarks.engine.alone import Alone
from benchmarks.engine.ceiling import quiet
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import served
from benchmarks.harness.client import Connection, measured, percentile, post
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Stream, closed_loop, cost, open_loop
from model_export.artifact.batch import Tokens
from service.engine.cpu import available_cores

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
MIXES = ("mixed", "STS-B", "passages", "long tail")
SINGLE = 16  # tokens
Bodies = Callable[[str], bytes]  # a text's request
WAYS: dict[str, Bodies] = {
    "json": lambda text: post("/embed", {"inputs": text}),
    "npy": lambda text: post("/embed", {"inputs": text}, accept="application/x-npy"),
    "base64": lambda text: post("/v1/embeddings", {"input": text, "encoding_format": "base64"}),
    "fill-mask": lambda text: post("/fill-mask", {"inputs": masked(text)}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=served, help="a folder, or fp32 or int8: BERT-base with random weights")
    parser.add_argument(
        "--mix", default="", help="only the mixes whose name contains this; the JSON keeps what it has of the others"
    )
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--shares",
        type=float,
        nargs="*",
        default=[0.3, 0.5, 0.7, 0.9],
        help="offered load of the open loop, as shares of the peak",
    )
    parser.add_argument("--open-seconds", type=float, default=8.0, help="of each open loop")
    arguments = parser.parse_args()
    quiet()
    results = {}
    engine = Alone(arguments.artifact, available_cores())
    with (
        ServiceProcess({"BERT_ARTIFACT": str(arguments.artifact)}) as server,
        ServiceProcess({}, module="benchmarks.harness.null") as null,
    ):
        found = asyncio.run(measured(server.port))
        print(f"loaded, {found['token_budget']} tokens a batch; measuring", flush=True)
        for name, lengths in mixes.MIXES.items():
            if arguments.mix in name and name.startswith(MIXES):
                results[name] = Measuring(arguments, engine, server, null.port, lengths).all()
    print(
        "\n\n".join(
            table(["mix", *rows[0][1]], [[name, *row.values()] for name, row in rows]) for rows in tables(results)
        )
    )
    details = {key: getattr(arguments, key) for key in ("connections", "seconds", "rounds", "open_seconds")}
    update(
        f"server-{arguments.artifact.name}",
        results,
        details={"artifact": arguments.artifact.name, "measured": found} | details,
    )


class Measuring:
    """One mix: everything that takes turns, and what follows from it."""

    def __init__(
        self, arguments: argparse.Namespace, engine: Alone, server: ServiceProcess, null: int, lengths: Sequence[int]
    ) -> None:
        self.options, self.engine, self.server, self.null = arguments, engine, server, null
        self.texts = texts_of(arguments.artifact, lengths, count=512)
        self.work = self.alone(itertools.islice(itertools.cycle(lengths), max(len(lengths), 2 * arguments.connections)))
        self.requests = {way: [ask(text) for text in self.texts] for way, ask in WAYS.items()}
        self.streams = {way: itertools.cycle(requests) for way, requests in self.requests.items()}

    def all(self) -> dict[str, Any]:
        """Texts a second, ratios, cost of a request, waits by offered rate, and a single text's waits."""
        for way in WAYS:
            self.closed(self.server.port, way, 0.5)  # warms up
        rounds = [self.round() for _ in range(self.options.rounds)]
        rates = {name: median(one[name] for one in rounds) for name in rounds[0]}
        ratios = {
            f"{way} / engine": median(one[way] / one["engine"] for one in rounds) for way in WAYS if way != "fill-mask"
        }
        ratios["fill-mask cost / embed"] = median(one["json"] / one["fill-mask"] for one in rounds)
        return {
            "texts_per_second": rates | {"null": self.closed(self.null, "json", 1.0).rate},
            "ratios": ratios,
            "cost": self.cost(),
            "single": self.single(),
            "open_loop": [self.offered(share * rates["json"]) for share in self.options.shares],
        }

    def round(self) -> dict[str, float]:
        seconds = self.options.seconds
        return {"engine": self.engine_rate(seconds)} | {
            way: self.closed(self.server.port, way, seconds).rate for way in WAYS
        }

    def alone(self, lengths: Iterable[int]) -> list[list[Tokens]]:
        """A request of one text for each length."""
        return [
            [one]
            for one in mixes.texts(list(lengths), vocabulary=self.engine.runtime.artifact.manifest.sizes["vocabulary"])
        ]

    def engine_rate(self, seconds: float) -> float:
        spent, done = 0.0, 0
        while spent < seconds:
            spent, done = spent + self.engine.seconds(self.work), done + len(self.work)
        return done / spent

    def closed(self, port: int, way: str, seconds: float) -> Stream:
        return asyncio.run(
            closed_loop(port, self.streams[way], connections=self.options.connections, seconds=seconds)
        ).must_be()

    def cost(self) -> dict[str, float]:
        """Processor time of a request: of the server, of its event loop's thread with and without tokenizing, of this client."""
        _, spent = cost(
            self.server.process.pid, lambda: self.closed(self.server.port, "json", 2 * self.options.seconds)
        )
        return {
            "server ms": spent["process"] / 1000,
            "loop us": spent["loop"],
            "tokenizing us": spent["tokenizing"],
            "outside us": spent["loop"] - spent["tokenizing"],
            "client us": spent["client"],
        }

    def single(self, *, times: int = 60) -> dict[str, float]:
        """Milliseconds of one text at a time, turn by turn; the first turns warm up."""
        alone, ask = self.alone([SINGLE]), WAYS["json"](texts_of(self.options.artifact, [SINGLE], count=1)[0])
        connection, over_http, in_engine = Connection(self.server.port), [], []
        with asyncio.Runner() as loop:
            for _ in range(times):
                in_engine.append(self.engine.seconds(alone))
                over_http.append(loop.run(connection.ask(ask)).seconds)
            connection.close()
        server, engine = percentile(over_http[5:], 0.5), percentile(in_engine[5:], 0.5)
        return {"engine p50 ms": engine, "server p50 ms": server, "server / engine": server / engine}

    def offered(self, rate: float) -> dict[str, float]:
        stream = asyncio.run(
            open_loop(self.server.port, self.requests["json"], rate=rate, seconds=self.options.open_seconds)
        )
        waits = {f"{name} ms": percentile(stream.answered, share) for name, share in SHARES.items()}
        return {
            "offered": rate,
            "achieved": stream.rate,
            "answers": len(stream.answered),
            "refused": stream.asked - len(stream.answered),
        } | waits


def tables(results: dict[str, Any]) -> list[list[tuple[str, dict[str, float]]]]:
    """Rows of each table, by mix."""
    found = [
        [(name, result[part]) for name, result in results.items()]
        for part in ("texts_per_second", "ratios", "cost", "single")
    ]
    waits = [(name, row) for name, result in results.items() for row in result["open_loop"]]
    return [*found, waits] if waits else found


def texts_of(artifact: Path, lengths: Sequence[int], *, count: int) -> list[str]:
    """Different texts of these lengths in tokens, made of whole words of the artifact's own vocabulary."""
    vocabulary = Tokenizer.from_file(str(artifact / "cpu" / "tokenizer.json")).get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalnum() and word == word.lower())
    draw = random.Random(10)
    return [" ".join(draw.choices(words, k=max(1, lengths[i % len(lengths)] - 2))) for i in range(count)]


def masked(text: str) -> str:
    return " ".join(["[MASK]", *text.split(" ")[1:]])


if __name__ == "__main__":
    main()
