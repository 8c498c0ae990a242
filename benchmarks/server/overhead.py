"""`python -m benchmarks.server.overhead ARTIFACT`: what a request costs the event loop besides the model.

The whole service runs in a process of its own around a model that computes nothing (`null_model.py`). A closed loop
sends it one text of STS-B's lengths a request. What counts is the processor time a request of the thread that runs the
event loop, median of the rounds: HTTP, validation, tokenizing, the queue, encoding.

    tokenizing   its part of the loop, from the server-timing header
    rest         the loop without tokenizing
    floor        a bare ASGI application on the same connections that reads the same body and answers as many bytes
                 (`null_server.py`)
    client       this client's own processor time, beside the service and beside the floor

Service and floor take turns, some tenths of a second each. The artifact gives the tokenizer, the vocabulary and the
width of a vector.
"""

import argparse
import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import ARTIFACT_HELP, artifact_to_serve
from benchmarks.harness.client import Connection, get, post
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Stream, closed_loop, cost
from benchmarks.server.__main__ import REQUEST_FORMS, BuildRequest, random_texts
from packbert.service.artifact import open_artifact

REQUESTS = 64  # different ones
FULL = {  # settings of a service whose queue can be kept full
    "BERT_MAX_WAITING_TOKENS": "1000",
    "BERT_TIMEOUT_MS": "3600000",
    "BERT_RUN_TIMEOUT_SECONDS": "3600",
    "BERT_DRAIN_SECONDS": "0",
}
NEVER_ANSWERED = 4  # requests of the greatest length, which the null model never answers: more than the queue holds
WAITING = 200  # shortest requests behind them: more than the queue holds, so that no further request fits
SIZING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: its requests, and the status that every answer must have."""

    build: BuildRequest
    status: int = 200
    full: bool = False  # sent to the service whose queue is full


def split_in_halves(text: str) -> dict[str, str]:
    words = text.split(" ")
    return {"text": " ".join(words[: len(words) // 2]), "text_pair": " ".join(words[len(words) // 2 :])}


ROWS = {
    "/embed, JSON": Row(REQUEST_FORMS["json"]),
    "/embed, NPY": Row(REQUEST_FORMS["npy"]),
    "/v1/embeddings, base64": Row(REQUEST_FORMS["base64"]),
    "/fill-mask": Row(REQUEST_FORMS["fill-mask"]),
    "/nsp": Row(lambda text: post("/nsp", {"inputs": split_in_halves(text)})),
    "429, the queue is full": Row(REQUEST_FORMS["json"], status=429, full=True),
    "422, no such pooling": Row(lambda text: post("/embed", {"inputs": text, "pooling": "none such"}), status=422),
    "GET /health": Row(lambda _: get("/health")),
}


def main() -> None:
    arguments = parse_arguments()
    texts = random_texts(arguments.artifact, mixes.shuffled(mixes.STS_B), count=REQUESTS)
    artifact = {"BERT_MODEL": str(arguments.artifact), "BERT_LOG_LEVEL": "warning"}
    with (
        asyncio.Runner() as loop,
        ServiceProcess(artifact, module="benchmarks.harness.null_model") as service,
        ServiceProcess(artifact | FULL, module="benchmarks.harness.null_model") as full,
        ServiceProcess({}, module="benchmarks.harness.null_server") as floor,
        fill_queue(full.port, arguments.artifact, texts, loop),
    ):
        contenders = [
            Contender(name, connections, full if row.full else service, floor, texts, loop)
            for name, row in ROWS.items()
            if arguments.row in name
            for connections in arguments.connections
        ]
        _warm_up, *rounds = [
            [contender.measure_turn(arguments.seconds) for contender in contenders] for _ in range(arguments.rounds + 1)
        ]
    results: dict[str, dict[str, dict[str, float]]] = {}  # row -> connections -> column -> median of the rounds
    for contender, *turns in zip(contenders, *rounds, strict=True):
        medians = {column: median(turn[column] for turn in turns) for column in turns[0]}
        results.setdefault(contender.name, {})[str(contender.connections)] = medians
    rows = [[name, count, *one.values()] for name, found in results.items() for count, one in found.items()]
    print(table(["us a request", "connections", *rounds[0][0]], rows))
    if arguments.output != "-":
        details = {key: getattr(arguments, key) for key in ("seconds", "rounds")}
        update(arguments.output, {arguments.artifact.name: results}, details=details)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=artifact_to_serve, help=ARTIFACT_HELP)
    parser.add_argument("--row", default="", help="only the rows whose name contains this")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--seconds", type=float, default=0.4, help="of each turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", default="overhead", help="name of the JSON file in benchmarks/results; - for none")
    return parser.parse_args()


@contextmanager
def fill_queue(port: int, artifact: Path, texts: Sequence[str], loop: asyncio.Runner) -> Iterator[None]:
    """Keeps the queue of the service at `port` full with requests that are never answered."""
    longest = random_texts(artifact, [open_artifact(artifact).manifest.max_tokens], count=1)[0]
    shortest = min(texts, key=len)
    sent: list[asyncio.Task[object]] = []

    async def fill(text: str, times: int) -> None:
        request = REQUEST_FORMS["json"](text)
        asked = [asyncio.create_task(Connection(port).ask(request)) for _ in range(times)]
        sent.extend(asked)
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)  # until one is refused

    loop.run(fill(longest, NEVER_ANSWERED))
    loop.run(fill(shortest, WAITING))
    yield
    for task in sent:
        task.cancel()


class Contender:
    """One row with a number of connections, and its floor."""

    def __init__(
        self,
        name: str,
        connections: int,
        service: ServiceProcess,
        floor: ServiceProcess,
        texts: Sequence[str],
        loop: asyncio.Runner,
    ) -> None:
        self.name, self.row, self.connections, self.loop = name, ROWS[name], connections, loop
        self.service, self.floor = service, floor
        requests = [self.row.build(text) for text in texts]
        self.requests = itertools.cycle(requests)
        self.bare = itertools.cycle(loop.run(asyncio.wait_for(same_size(service.port, requests), SIZING_SECONDS)))

    def measure_turn(self, seconds: float) -> Mapping[str, float]:
        """Microseconds of processor time a request."""
        ours = self.cost(self.service, self.requests, seconds, self.row.status)
        bare = self.cost(self.floor, self.bare, seconds, 200)
        rest = ours["loop"] - ours["tokenizing"]
        return {
            "loop": ours["loop"],
            "tokenizing": ours["tokenizing"],
            "rest": rest,
            "floor": bare["loop"],
            "rest / floor": rest / bare["loop"],
            "client": ours["client"],
            "client of floor": bare["client"],
            "answers/s": ours["rate"],
        }

    def cost(
        self, server: ServiceProcess, requests: Iterator[bytes], seconds: float, status: int
    ) -> Mapping[str, float]:
        def run() -> Stream:
            stream = closed_loop(server.port, requests, connections=self.connections, seconds=seconds)
            return self.loop.run(stream).must_be(status)

        stream, found = cost(server.process.pid, run)
        return found | {"rate": stream.asked / stream.seconds}


async def same_size(port: int, requests: Sequence[bytes]) -> list[bytes]:
    """The same requests to a path that `null_server.py` answers with as many bytes as the service answers to each."""
    connection, bare = Connection(port), []
    for request in requests:
        size = len((await connection.ask(request)).body)
        method, _, rest = request.split(b" ", 2)
        bare.append(b"%b /%d %b" % (method, size, rest))
    connection.close()
    return bare


if __name__ == "__main__":
    main()
