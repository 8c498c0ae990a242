"""Swaps of a model under load: how many requests fail, how many answers are not wholly one model's.

python -m benchmarks.server.swaps FIRST SECOND [--swaps 200] [--workers 1] [--clients 4]

FIRST and SECOND are artifacts. The rate during a swap is compared with that of the seconds before it, in which the same
model answers. The memory shows whether a model that has left is let go.
"""

import argparse
import json
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np

from benchmarks.harness.process import ServiceProcess, resident_mib

KEY = "a key of the benchmark"
ADMIN = {"authorization": f"Bearer {KEY}"}
Answers = dict[str, np.ndarray]  # by the digest of a model
TEXTS = ["my dog is hairy", "it rains", "a text of a few more words than the others have"]
REPLY_SECONDS = 120
QUIET_SECONDS = 2  # before each swap
END_SECONDS = 5  # for a process that ends to be gone
LAST_LINES = 40  # of the output of a service that gives no answer


def post(service: ServiceProcess, path: str, body: object) -> httpx.Response:
    """Over a new connection, so that any of the workers answers. Ends with the last lines of a service that gives
    no answer."""
    try:
        return httpx.post(service.url + path, json=body, headers=ADMIN, timeout=REPLY_SECONDS)
    except httpx.TransportError as error:
        with suppress(subprocess.TimeoutExpired):
            service.process.wait(END_SECONDS)
        code = service.process.returncode
        state = "still runs" if code is None else f"has ended with exit code {code}"
        lines = "\n".join(service.output().splitlines()[-LAST_LINES:])
        raise SystemExit(f"{path}: {type(error).__name__}: the service {state}; its last lines:\n{lines}") from error


def known_answers(folders: list[str], device: str) -> Answers:
    """The answer of each model in a service of its own, by its digest."""
    answers: Answers = {}
    for folder in folders:
        with ServiceProcess({"BERT_MODELS": f"one={folder}", "BERT_DEVICE": device}) as service:
            answer = post(service, "/embed", {"inputs": TEXTS})
            answers[answer.headers["x-model-digest"]] = np.array(answer.json())
    return answers


def ask(url: str, known: Answers, tolerance: float, counts: Counter[str], stop: threading.Event) -> None:
    with httpx.Client(base_url=url, timeout=REPLY_SECONDS) as client:
        while not stop.is_set():
            try:
                answer = client.post("/models/one/embed", json={"inputs": TEXTS})
            except httpx.TransportError:
                counts["failed"] += 1
                continue
            if answer.status_code != 200:
                counts["failed"] += 1
            elif (expected := known.get(answer.headers["x-model-digest"])) is None:
                counts["mixed"] += 1
            else:
                difference = np.abs(np.array(answer.json()) - expected).max()
                counts["right" if difference <= tolerance else "mixed"] += 1


def run(folders: list[str], given: argparse.Namespace) -> dict[str, float]:
    swaps, workers, clients = given.swaps, given.workers, given.clients
    known, counts, stop = known_answers(folders, given.device), Counter[str](), threading.Event()
    settings = {
        "BERT_MODELS": f"one={folders[0]}",
        "BERT_DEVICE": given.device,
        "BERT_ADMIN_KEY": KEY,
        "BERT_WORKERS": str(workers),
        "BERT_TOKEN_BUDGET": "256",
    }
    with ServiceProcess(settings) as service:
        arguments = (service.url, known, given.tolerance, counts, stop)
        threads = [threading.Thread(target=ask, args=arguments, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        memory, refused, seconds, answered, expected = [], 0, 0.0, 0, 0.0
        for number in range(swaps):
            began, before = time.monotonic(), counts["right"]
            stop.wait(QUIET_SECONDS)
            middle, between = time.monotonic(), counts["right"]
            answer = post(service, "/admin/models", {"model": "one", "source": folders[(number + 1) % 2]})
            lasted, answered = time.monotonic() - middle, answered + counts["right"] - between
            seconds, expected = seconds + lasted, expected + lasted * (between - before) / (middle - began)
            refused += answer.status_code != 200 or not answer.json()["swapped"]
            memory.append(round(resident_mib(service.process.pid, children=True)))
        stop.set()
        for thread in threads:
            thread.join()
    kept = {"MiB after 10 swaps": memory[min(9, swaps - 1)], "MiB at the end": memory[-1]}
    ends = {name: counts[name] for name in ("right", "failed", "mixed")}
    rates = {
        "answers a second during swaps": round(answered / seconds, 2),
        "share of the rate without": round(answered / expected, 2),
    }
    return {"workers": workers, "swaps": swaps, "swaps refused": refused} | ends | kept | rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs=2, type=Path, metavar="ARTIFACT")
    parser.add_argument("--swaps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tolerance", type=float, default=0.0, help="difference of an answer; on a GPU not 0")
    given = parser.parse_args()
    print(json.dumps(run([*map(str, given.folders)], given), indent=1))


if __name__ == "__main__":
    main()
