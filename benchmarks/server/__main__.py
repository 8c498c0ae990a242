"""`python -m benchmarks.server ARTIFACT`: the whole server over HTTP beside the same engine alone, one text a request.

    engine     the queue and the model runner alone, in this process, with twice as many texts as there are connections
    json, ...  a closed loop on all connections: the peak rate, by form of the answer
    fill-mask  the same texts with a mask in place of one word
    null       the same requests to a server that does nothing, to show whether the client is the limit
    open loop  Poisson streams at shares of the peak; latency counts from the moment a request was meant to be sent
    single     a text of 16 tokens on the idle server, and on the engine alone

These take turns, some seconds each, and the median of the rounds counts. Ratios are medians of each round's own ratio,
because machines drift. Server and client share this machine's cores, so that the client lowers the server's rate; the
processor time of both is reported.
"""

import argparse
import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from tokenizers import Tokenizer

from benchmarks.engine.alone import EngineAlone
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import ARTIFACT_HELP, artifact_to_serve
from benchmarks.harness.client import Connection, ask_once, get, percentile, post
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Stream, closed_loop, cost, open_loop
from packbert.model_export.artifact.batch import Tokens
from packbert.service.engine.cpu import available_cores

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
MIXES = ("mixed", "STS-B", "passages", "long tail")
SINGLE = 16  # tokens
BuildRequest = Callable[[str], bytes]  # text -> HTTP request
REQUEST_FORMS: dict[str, BuildRequest] = {
    "json": lambda text: post("/embed", {"inputs": text}),
    "npy": lambda text: post("/embed", {"inputs": text}, accept="application/x-npy"),
    "base64": lambda text: post("/v1/embeddings", {"input": text, "encoding_format": "base64"}),
    "fill-mask": lambda text: post("/fill-mask", {"inputs": mask_first_word(text)}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=artifact_to_serve, help=ARTIFACT_HELP)
    parser.add_argument("--mix", default="", help="only the mixes whose name contains this; the JSON keeps the others")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=7)
    shares = "offered load of the open loop, as shares of the peak"
    parser.add_argument("--shares", type=float, nargs="*", default=[0.3, 0.5, 0.7, 0.9], help=shares)
    parser.add_argument("--open-seconds", type=float, default=8.0, help="of each open loop")
    arguments = parser.parse_args()
    results = {}
    engine = EngineAlone(arguments.artifact, available_cores())
    with (
        ServiceProcess({"BERT_MODEL": str(arguments.artifact)}) as server,
        ServiceProcess({}, module="benchmarks.harness.null_server") as null,
    ):
        found = orjson.loads(asyncio.run(ask_once(server.port, get("/info"))).body)["measured"]
        print(f"loaded, {found['token_budget']} tokens a batch; measuring", flush=True)
        for name, lengths in mixes.MIXES.items():
            if arguments.mix in name and name.startswith(MIXES):
                results[name] = MixBenchmark(arguments, engine, server, null.port, lengths).measure()
    for part in ("texts_per_second", "ratios", "cost", "single", "open_loop"):
        print_part({name: result[part] for name, result in results.items()})
    details = {key: getattr(arguments, key) for key in ("connections", "seconds", "rounds", "open_seconds")}
    details |= {"artifact": arguments.artifact.name, "measured": found}
    update(f"server-{arguments.artifact.name}", results, details=details)


class MixBenchmark:
    """One mix of lengths: its contenders, which take turns, and the figures that follow from their rates."""

    def __init__(
        self, options: argparse.Namespace, engine: EngineAlone, server: ServiceProcess, null: int, lengths: list[int]
    ) -> None:
        self.options, self.engine, self.server, self.null = options, engine, server, null
        texts = random_texts(options.artifact, lengths, count=512)
        of_engine = itertools.islice(itertools.cycle(lengths), max(len(lengths), 2 * options.connections))
        self.work = self.one_text_requests(of_engine)
        self.requests = {form: [build(text) for text in texts] for form, build in REQUEST_FORMS.items()}
        self.streams = {form: itertools.cycle(requests) for form, requests in self.requests.items()}

    def measure(self) -> dict[str, Any]:
        """Texts a second, ratios, cost of a request, waits by offered rate, and the time of a single text."""
        for form in REQUEST_FORMS:
            self.closed(self.server.port, form, 0.5)  # warms up
        rounds = [self.round() for _ in range(self.options.rounds)]
        rates = {name: median(one[name] for one in rounds) for name in rounds[0]}
        forms = [form for form in REQUEST_FORMS if form != "fill-mask"]
        ratios = {f"{form} / engine": median(one[form] / one["engine"] for one in rounds) for form in forms}
        ratios["fill-mask cost / embed"] = median(one["json"] / one["fill-mask"] for one in rounds)
        return {
            "texts_per_second": rates | {"null": self.closed(self.null, "json", 1.0).rate},
            "ratios": ratios,
            "cost": self.cost(),
            "single": self.single(),
            "open_loop": [self.poisson_stream(share * rates["json"]) for share in self.options.shares],
        }

    def round(self) -> dict[str, float]:
        seconds = self.options.seconds
        return {"engine": self.engine_rate(seconds)} | {
            form: self.closed(self.server.port, form, seconds).rate for form in REQUEST_FORMS
        }

    def one_text_requests(self, lengths: Iterable[int]) -> list[list[Tokens]]:
        """A request of one text for each length."""
        vocabulary = self.engine.runner.artifact.manifest.sizes["vocabulary"]
        return [[tokens] for tokens in mixes.texts(list(lengths), vocabulary=vocabulary)]

    def engine_rate(self, seconds: float) -> float:
        spent, done = 0.0, 0
        while spent < seconds:
            spent, done = spent + self.engine.seconds(self.work), done + len(self.work)
        return done / spent

    def closed(self, port: int, form: str, seconds: float) -> Stream:
        return asyncio.run(
            closed_loop(port, self.streams[form], connections=self.options.connections, seconds=seconds)
        ).must_be()

    def cost(self) -> dict[str, float]:
        """Processor time of a request: server, its event loop with and without tokenizing, client."""
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
        """Milliseconds of one text at a time, server and engine in turns; the first turns warm up."""
        alone = self.one_text_requests([SINGLE])
        request = REQUEST_FORMS["json"](random_texts(self.options.artifact, [SINGLE], count=1)[0])
        connection, over_http, in_engine = Connection(self.server.port), [], []
        with asyncio.Runner() as loop:
            for _ in range(times):
                in_engine.append(self.engine.seconds(alone))
                over_http.append(loop.run(connection.ask(request)).seconds)
            connection.close()
        server, engine = percentile(over_http[5:], 0.5), percentile(in_engine[5:], 0.5)
        return {"engine p50 ms": engine, "server p50 ms": server, "server / engine": server / engine}

    def poisson_stream(self, rate: float) -> dict[str, float]:
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


def print_part(by_mix: Mapping[str, Any]) -> None:
    """Prints a table with a row for each mix, or for each stream of a mix."""
    rows = [(mix, row) for mix, found in by_mix.items() for row in (found if isinstance(found, list) else [found])]
    if rows:
        print("\n" + table(["mix", *rows[0][1]], [[mix, *row.values()] for mix, row in rows]))


def random_texts(artifact: Path, lengths: Sequence[int], *, count: int) -> list[str]:
    """Different texts of these lengths in tokens, made of whole words of the artifact's own vocabulary."""
    vocabulary = Tokenizer.from_file(str(artifact / "cpu" / "tokenizer.json")).get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalnum() and word == word.lower())
    draw = random.Random(10)
    return [" ".join(draw.choices(words, k=max(1, lengths[i % len(lengths)] - 2))) for i in range(count)]


def mask_first_word(text: str) -> str:
    return " ".join(["[MASK]", *text.split(" ")[1:]])


if __name__ == "__main__":
    main()
