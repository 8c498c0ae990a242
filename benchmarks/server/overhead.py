"""`python -m benchmarks.server.overhead ARTIFACT`: what a request costs the event loop beside the model: HTTP, validation, tokenizing, the line, encoding.

The whole service runs in a process of its own around a model that computes nothing (`null_model.py`). A closed loop asks it one text of STS-B's
lengths a request; what counts is the processor time of the thread that turns the event loop, by request, median of the rounds.

    tokenizing   of it, as the server-timing header says
    rest         all else
    floor        a bare ASGI application that reads the same body and answers as many bytes (`null.py`), on uvicorn's own protocol
    client       this client's own processor time, beside the service and beside the floor

Service and floor take turns, some tenths of a second each. The artifact gives the tokenizer, the vocabulary and the width of a vector.
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
from benchmarks.harness.checkpoints import served
from benchmarks.harness.client import Connection, get, post
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import ServiceProcess
from benchmarks.harness.streams import Stream, closed_loop, cost
from benchmarks.server.__main__ import WAYS, Bodies, texts_of
from service.artifact import open_artifact

REQUESTS = 64  # different ones
FULL = {  # settings of a service whose line can be filled for good
    "BERT_MAX_WAITING_TOKENS": "1000",
    "BERT_TIMEOUT_MS": "3600000",
    "BERT_RUN_TIMEOUT_SECONDS": "3600",
    "BERT_SELF_CHECK_SECONDS": "3600",
    "BERT_DRAIN_SECONDS": "0",
}
NEVER, BEHIND = (
    4,
    200,
)  # requests that are never answered; the shortest ones, which wait behind them: more than the line takes, so that none fits
FILLING_SECONDS = 0.5
SIZING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Way:
    """A row of the table: how it is asked, what must be answered."""

    ask: Bodies
    status: int = 200
    full: bool = False  # of the service whose line is full


def halves(text: str) -> dict[str, str]:
    words = text.split(" ")
    return {"text": " ".join(words[: len(words) // 2]), "text_pair": " ".join(words[len(words) // 2 :])}


ROWS = {
    "/embed, JSON": Way(WAYS["json"]),
    "/embed, NPY": Way(WAYS["npy"]),
    "/v1/embeddings, base64": Way(WAYS["base64"]),
    "/fill-mask": Way(WAYS["fill-mask"]),
    "/nsp": Way(lambda text: post("/nsp", {"inputs": halves(text)})),
    "429, the line is full": Way(WAYS["json"], status=429, full=True),
    "422, no such pooling": Way(lambda text: post("/embed", {"inputs": text, "pooling": "none such"}), status=422),
    "GET /health": Way(lambda _: get("/health")),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifact", type=served, help="a folder, or fp32 or int8: BERT-base with random weights")
    parser.add_argument("--row", default="", help="only the rows whose name contains this")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--seconds", type=float, default=0.4, help="of each turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", default="overhead", help="name of the JSON file in benchmarks/results; - for none")
    arguments = parser.parse_args()
    texts = texts_of(arguments.artifact, mixes.shuffled(mixes.STS_B), count=REQUESTS)
    artifact = {"BERT_ARTIFACT": str(arguments.artifact), "BERT_LOG_LEVEL": "warning"}
    with (
        asyncio.Runner() as loop,
        ServiceProcess(artifact, module="benchmarks.harness.null_model") as service,
        ServiceProcess(artifact | FULL, module="benchmarks.harness.null_model") as full,
        ServiceProcess({}, module="benchmarks.harness.null") as floor,
        filled(full.port, arguments.artifact, texts, loop),
    ):
        contenders = [
            Contender(
                name, row, connections, full if row.full else service, floor, [row.ask(text) for text in texts], loop
            )
            for name, row in ROWS.items()
            if arguments.row in name
            for connections in arguments.connections
        ]
        rounds = [[contender.turn(arguments.seconds) for contender in contenders] for _ in range(arguments.rounds + 1)][
            1:
        ]  # the first warms up
    results: dict[str, dict[str, dict[str, float]]] = {}
    for number, contender in enumerate(contenders):
        turns = [one[number] for one in rounds]
        results.setdefault(contender.name, {})[str(contender.connections)] = {
            column: median(turn[column] for turn in turns) for column in turns[0]
        }
    rows = [
        [name, connections, *figures.values()]
        for name, found in results.items()
        for connections, figures in found.items()
    ]
    print(table(["us a request", "connections", *next(iter(rounds[0]))], rows))
    if arguments.output != "-":
        details = {key: getattr(arguments, key) for key in ("seconds", "rounds")}
        update(arguments.output, {arguments.artifact.name: results}, details=details)


@contextmanager
def filled(port: int, artifact: Path, texts: Sequence[str], loop: asyncio.Runner) -> Iterator[None]:
    """The line of the service at `port` is full, of requests that are never answered."""
    longest = texts_of(artifact, [open_artifact(artifact).manifest.max_tokens], count=1)[0]
    shortest = min(texts, key=lambda text: text.count(" "))
    asked: list[asyncio.Task[object]] = []

    async def fill(text: str, times: int) -> None:
        asked.extend(asyncio.create_task(Connection(port).ask(WAYS["json"](text))) for _ in range(times))
        await asyncio.sleep(FILLING_SECONDS)

    loop.run(fill(longest, NEVER))
    loop.run(fill(shortest, BEHIND))
    yield
    for task in asked:
        task.cancel()


class Contender:
    """One row with so many connections, beside its floor."""

    def __init__(
        self,
        name: str,
        row: Way,
        connections: int,
        service: ServiceProcess,
        floor: ServiceProcess,
        requests: Sequence[bytes],
        loop: asyncio.Runner,
    ) -> None:
        self.name, self.row, self.connections, self.loop = name, row, connections, loop
        self.service, self.floor = service, floor
        self.requests = itertools.cycle(requests)
        self.bare = itertools.cycle(loop.run(asyncio.wait_for(same_size(service.port, requests), SIZING_SECONDS)))

    def turn(self, seconds: float) -> Mapping[str, float]:
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
            return self.loop.run(
                closed_loop(server.port, requests, connections=self.connections, seconds=seconds)
            ).must_be(status)

        stream, found = cost(server.process.pid, run)
        return found | {"rate": stream.asked / stream.seconds}


async def same_size(port: int, requests: Sequence[bytes]) -> list[bytes]:
    """The same requests to a path that `null.py` answers with as many bytes as the service answers to each."""
    connection, bare = Connection(port), []
    for request in requests:
        size = len((await connection.ask(request)).body)
        method, _, rest = request.split(b" ", 2)
        bare.append(b"%b /%d %b" % (method, size, rest))
    connection.close()
    return bare


if __name__ == "__main__":
    main()
