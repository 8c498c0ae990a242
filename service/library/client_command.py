"""`packbert client TASK INPUT -o OUTPUT`: the answers to all texts of a file, in its order; continues after a stop."""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from urllib.parse import urlsplit

from tqdm import tqdm

from packbert.parser import Parser, one_of, seconds, whole_number

from .arguments import add_job_arguments, make_job, run_command
from .client import Client
from .job import TASKS, run_job

ABOUT = (
    "Writes the answers of a running service to all texts of a file, in its order. The same command continues a job "
    "that was stopped."
)
NOTE = "The key of a server with one is taken from the environment variable BERT_API_KEY."
EXAMPLES = (
    "packbert client embed texts.txt -o vectors.npy",
    "packbert client predict reviews.csv -o labels.jsonl --column review --url http://bert:8080 --skip-errors",
)


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("packbert client", "TASK INPUT -o OUTPUT [FLAGS]", ABOUT, EXAMPLES, NOTE)
    parser.add("files", "task", metavar="TASK", type=one_of(*TASKS), help=", ".join(TASKS))
    add_job_arguments(parser, "-o", "--output", required=True)
    address = {"type": _url, "default": "http://127.0.0.1:8080", "metavar": "URL"}
    parser.add("network", "--url", help="of the service (default: %(default)s)", **address)
    about = "most requests at a time (default: %(default)s)"
    parser.add("network", "--requests", type=whole_number, default=8, metavar="NUMBER", help=about)
    about = "how long to wait for a server that is not there (default: %(default)g)"
    parser.add("network", "--patience", type=seconds, default=300.0, metavar="SECONDS", help=about)
    return parser.read(words)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text} is not http://HOST:PORT or https://HOST:PORT")
    return text


def main(words: Sequence[str]) -> int:
    """The exit code, as `run_command` has it."""
    return run_command("packbert client", partial(_answer, parse_arguments(words)))


def _answer(asked: argparse.Namespace) -> int:
    """The number of rows that were refused."""
    job = make_job(asked)
    key = os.environ.get("BERT_API_KEY", "")
    with Client(asked.url, api_key=key, max_requests=asked.requests, patience_seconds=asked.patience) as client:
        client.info()  # waits for the server, before the bar
        with tqdm(unit=" rows", desc=asked.task) as bar:
            return run_job(job, client, on_rows=bar.update)
