"""`python -m benchmarks.server ARTIFACT`: the whole server over HTTP beside the same engine alone, one text a request.

    engine   the runtime alone, in this process, on batches of as many texts as there are connections
    closed   as many requests at once as there are connections, each followed by the next: the peak rate
    open     a Poisson stream at a share of the peak; latency counts from the moment each request was meant to be sent
    null     the same requests to a server that does nothing: a client that were the limit would show here

Server and client share this machine's cores, so the server's rate is what is left beside the client; both report processor time.
"""

import argparse
import asyncio
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks import mixes
from benchmarks.ceiling import quiet
from benchmarks.client import Connection, Pool, percentile, post
from benchmarks.machine import table, write
from service.artifact import open_artifact
from service.cores import available_cores
from service.runtime import Runtime
from tests.process import ServiceProcess

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
MIXES = ("mixed", "STS-B", "passages", "long tail")
BINARY = {"accept": "application/x-npy"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--mix", default="", help="only the mixes whose name contains this")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--share", type=float, default=0.7, help="offered load of the open loop, as a share of the closed loop's rate")
    arguments = parser.parse_args()
    quiet()
    results = {}
    with ServiceProcess({"BERT_ARTIFACT": str(arguments.artifact)}) as server:
        print("loaded; measuring", flush=True)
        for name, lengths in mixes.MIXES.items():
            if arguments.mix in name and name.startswith(MIXES):
                results[name] = measure(server, arguments, lengths)
    columns = list(next(iter(results.values())))
    print(table(["mix", *columns], [[name, *result.values()] for name, result in results.items()]))
    write("server", results, details={"artifact": arguments.artifact.name, "connections": arguments.connections, "seconds": arguments.seconds})


def measure(server: ServiceProcess, arguments: argparse.Namespace, lengths: Sequence[int]) -> dict[str, Any]:
    texts = texts_of(arguments.artifact, lengths, count=512)
    requests = [post("/embed", {"inputs": text}) for text in texts]
    engine = engine_rate(arguments.artifact, list(lengths), arguments.connections, arguments.seconds)
    before, mine = cpu_seconds(server.process.pid), time.process_time()
    closed, answered = asyncio.run(closed_loop(server.port, requests, arguments.connections, arguments.seconds))
    spent, client = cpu_seconds(server.process.pid) - before, time.process_time() - mine
    plain = [post("/embed", {"inputs": text}, **BINARY) for text in texts]
    binary, _ = asyncio.run(closed_loop(server.port, plain, arguments.connections, arguments.seconds))
    offered = arguments.share * closed
    waits = asyncio.run(open_loop(server.port, requests, offered, arguments.seconds))
    return {
        "engine": engine,
        "closed": closed,
        "closed / engine": closed / engine,
        "binary": binary,
        "null": null_rate(requests, arguments.connections),
        "server ms": 1000 * spent / answered,
        "client ms": 1000 * client / answered,
        "offered": offered,
        "achieved": len(waits) / arguments.seconds,
    } | {f"{name} ms": percentile(waits, share) for name, share in SHARES.items()}


def texts_of(artifact: Path, lengths: Sequence[int], *, count: int) -> list[str]:
    """Different texts of these lengths in tokens, made of whole words of the artifact's own vocabulary."""
    vocabulary = Tokenizer.from_file(str(artifact / "cpu" / "tokenizer.json")).get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalnum() and word == word.lower())
    draw = random.Random(10)
    return [" ".join(draw.choices(words, k=max(1, lengths[i % len(lengths)] - 2))) for i in range(count)]


def engine_rate(artifact: Path, lengths: list[int], size: int, seconds: float) -> float:
    """Texts a second of the runtime alone, the best of several rounds, in batches of `size`."""
    opened = open_artifact(artifact)
    runtime = Runtime(opened, available_cores())
    runtime.open()
    work = mixes.texts((lengths * size)[: max(size, len(lengths))], vocabulary=opened.manifest.sizes["vocabulary"])
    batches = [work[i : i + size] for i in range(0, len(work), size)]
    best, end = float("inf"), time.monotonic() + seconds
    with asyncio.Runner() as loop:
        while time.monotonic() < end or best == float("inf"):
            started = time.perf_counter()
            for batch in batches:
                loop.run(runtime.run(batch))
            best = min(best, time.perf_counter() - started)
    runtime.close()
    return len(work) / best


async def closed_loop(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> tuple[float, int]:
    """Answers a second, and how many; raises where one is not 200."""
    end, count = time.monotonic() + seconds, 0

    async def one(number: int) -> int:
        connection, done = Connection(port), 0
        while time.monotonic() < end:
            outcome = await connection.ask(requests[(number + done * connections) % len(requests)])
            if outcome.status != 200:
                raise SystemExit(f"the server answered {outcome.status}: {outcome.body[:200]!r}")
            done += 1
        connection.close()
        return done

    started = time.monotonic()
    count = sum(await asyncio.gather(*(one(i) for i in range(connections))))
    return count / (time.monotonic() - started), count


async def open_loop(port: int, requests: Sequence[bytes], rate: float, seconds: float) -> list[float]:
    """Seconds from each request's intended moment to its answer."""
    draw, pool, waits = random.Random(11), Pool(port), []

    async def one(request: bytes, due: float) -> None:
        outcome = await pool.ask(request)
        if outcome.status == 200:
            waits.append(time.monotonic() - due)

    tasks, due = [], time.monotonic()
    end = due + seconds
    while due < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(one(requests[len(tasks) % len(requests)], due)))
        due += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    pool.close()
    return waits


def null_rate(requests: Sequence[bytes], connections: int) -> float:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.null", str(port)])
    try:
        for _ in range(100):
            if asyncio.run(Connection(port).ask(requests[0])).status == 200:
                break
            time.sleep(0.1)
        return asyncio.run(closed_loop(port, requests, connections, 2.0))[0]
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(process: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
