"""`python -m benchmarks.engine.families [FIGURE ...]`: ModernBERT, MPNet and DeBERTa against BERT and transformers.

The checkpoints are of base size, in fp32, with random weights; --layers takes as many of their first layers, since one
costs as much as another. Contenders take turns, each on one thread, and their processor time counts: other processes
change it less than the time that passes. Ours runs batches of at most OURS_TOKENS tokens in the order of the texts;
torch runs padded batches of BATCH_TEXTS texts, in that order or sorted by length. The results of other figures stay.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel

from benchmarks.engine.ceiling import silence_warnings
from benchmarks.engine.contenders.padding import pad
from benchmarks.harness import mixes
from benchmarks.harness.checkpoints import BASE, BUILD
from benchmarks.harness.machine import table, update
from benchmarks.harness.process import resident_mib
from packbert.model_export.artifact.batch import Tokens, pack
from packbert.model_export.artifact.manifest import MODEL
from packbert.model_export.build import build_graph
from packbert.model_export.checkpoint import Checkpoint
from packbert.model_export.families import Architecture, architecture_of
from packbert.service.engine.session import CpuSession, configure_inference_thread

CONFIGS: Mapping[str, Mapping[str, Any]] = {  # by model_type; what is missing are transformers' defaults
    "bert": BASE,
    "modernbert": {"num_hidden_layers": 22},
    "mpnet": {"num_hidden_layers": 12},
    "deberta-v2": BASE  # as microsoft/deberta-v3-base
    | {
        "vocab_size": 128_100,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "max_relative_positions": -1,
    },
}
UP_TO_512 = [int(n) for n in np.random.default_rng(3).integers(5, 513, 32)]
PASSAGES = mixes.passages(64)
LONG = 8192
OURS_TOKENS, BATCH_TEXTS = 1024, 32
AS_EXACT = 1e-4  # the largest difference of a hidden state to transformers that is allowed
States = list[Any]  # of each text, [length, hidden]
Texts = Sequence[Tokens]
Rows = Iterator[tuple[str, float, str]]  # a figure, what was found, and what must hold


@dataclass(frozen=True, slots=True)
class Model:
    """A family's random checkpoint with `layers` layers, or as many as it has."""

    family: str
    layers: int

    @property
    def folder(self) -> Path:
        """Made by transformers where it is missing."""
        config = dict(CONFIGS[self.family])
        config["num_hidden_layers"] = min(self.layers, config["num_hidden_layers"])
        folder = BUILD / f"{self.family}-{config['num_hidden_layers']}"
        if not (folder / "config.json").is_file():
            torch.manual_seed(5)
            AutoModel.from_config(AutoConfig.for_model(self.family, **config)).save_pretrained(folder)
        return folder

    @property
    def sizes(self) -> Architecture:
        return architecture_of(Checkpoint(self.folder).config)

    def texts(self, lengths: Sequence[int]) -> Texts:
        return mixes.texts(list(lengths), vocabulary=self.sizes.vocabulary, outputs=frozenset({"tokens"}))

    def ours(self) -> Callable[[Texts], States]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / MODEL
            build_graph(Checkpoint(self.folder), "fp32", "cpu").graph.save(path)
            session = CpuSession(path, threads=1)

        def run(texts: Texts) -> States:
            states: States = []
            for batch in batches(texts):
                (found,) = session.run(["tokens"], pack(batch).feeds)
                states += np.split(found, np.cumsum([len(text.ids) for text in batch])[:-1])
            return states

        return run

    def theirs(self, attention: str, *, is_sorted: bool = False) -> Callable[[Texts], States]:
        model = AutoModel.from_pretrained(self.folder, attn_implementation=attention).eval()

        def run(texts: Texts) -> States:
            order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids) if is_sorted else i)
            states: dict[int, Any] = {}
            for i in range(0, len(order), BATCH_TEXTS):
                numbers = order[i : i + BATCH_TEXTS]
                padded = pad([texts[number].ids for number in numbers])
                with torch.inference_mode():
                    inputs = {name: torch.from_numpy(padded[name]) for name in ("input_ids", "attention_mask")}
                    hidden = model(**inputs).last_hidden_state.numpy()
                states |= {number: rows[: len(texts[number].ids)] for number, rows in zip(numbers, hidden, strict=True)}
            return [states[i] for i in range(len(texts))]

        return run


def batches(texts: Texts) -> Iterator[Texts]:
    """`texts` in their order, at most OURS_TOKENS tokens at a time."""
    start = 0
    for end in range(1, len(texts) + 1):
        if end == len(texts) or sum(len(text.ids) for text in texts[start : end + 1]) > OURS_TOKENS:
            yield texts[start:end]
            start = end


def operations(sizes: Architecture, lengths: Sequence[int]) -> int:
    """Multiplications and additions of the linear layers, and of each token's attention to those that it can see."""
    linear = sizes.hidden * (4 * sizes.hidden + (3 if sizes.is_gated else 2) * sizes.intermediate)
    windows = [one.window for one in sizes.rotary] or [0] * sizes.layers
    reaches = [(n, min(window or n, n - 1)) for n in lengths for window in windows]
    seen = sum(n * (2 * reach + 1) - reach * (reach + 1) for n, reach in reaches)
    return 2 * (sizes.layers * linear * sum(lengths) + 2 * sizes.hidden * seen)


def take_turns(runs: Mapping[str, Callable[[], States]], rounds: int) -> tuple[dict[str, float], float]:
    """The least processor time of each, and the largest difference of a hidden state to those of the first one."""
    best, first, difference = dict.fromkeys(runs, float("inf")), None, 0.0
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.process_time()
            states = run()
            best[name] = min(best[name], time.process_time() - started)
            first = first or states
            difference = max(difference, *(float(np.abs(a - b).max()) for a, b in zip(states, first, strict=True)))
    return best, difference


def against_bert(layers: int, rounds: int) -> Rows:
    models = [Model(family, layers) for family in ("modernbert", "bert")]
    seconds, _ = take_turns({one.family: partial(one.ours(), one.texts(UP_TO_512)) for one in models}, rounds)
    rates = [operations(one.sizes, UP_TO_512) / seconds[one.family] for one in models]
    yield "ModernBERT / BERT, operations a second, 32 texts of 5 to 512 tokens", rates[0] / rates[1], "at least 0.85"


def long_text(layers: int, rounds: int) -> Rows:
    model = Model("modernbert", layers)
    texts, run = model.texts([LONG]), model.ours()
    run(model.texts([16]))
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the resident memory counts from here
    before = resident_mib(os.getpid())
    run(texts)
    name = f"ModernBERT, one text of {LONG:,} tokens"
    above = resident_mib(os.getpid(), peak=True) - before
    yield f"{name}: GB of memory above the weights", above * 2**20 / 1e9, "at most 1.5"
    yield from compared(
        name, {"ours": partial(run, texts), "torch's SDPA": partial(model.theirs("sdpa"), texts)}, rounds, 1.3
    )


def against_eager(name: str, family: str, layers: int, rounds: int) -> Rows:
    model = Model(family, layers)
    texts = model.texts(PASSAGES)
    runs = {
        "ours": partial(model.ours(), texts),
        f"torch eager, batches of {BATCH_TEXTS}": partial(model.theirs("eager"), texts),
        f"torch eager, sorted batches of {BATCH_TEXTS}": partial(model.theirs("eager", is_sorted=True), texts),
    }
    yield from compared(f"{name}, {len(texts)} texts like MS MARCO", runs, rounds, 1.5)


def compared(name: str, runs: Mapping[str, Callable[[], States]], rounds: int, least: float) -> Rows:
    """How many times as many tokens a second ours has, which is the first of `runs`."""
    seconds, difference = take_turns(runs, rounds)
    ours, *others = seconds
    for other in others:
        yield f"{name} / {other}", seconds[other] / seconds[ours], f"at least {least}"
    yield f"{name}: largest difference of a hidden state", difference, f"at most {AS_EXACT}"


FIGURES: Mapping[str, Callable[[int, int], Rows]] = {
    "bert": against_bert,
    "long": long_text,
    "mpnet": partial(against_eager, "MPNet", "mpnet"),
    "deberta": partial(against_eager, "DeBERTa-v3", "deberta-v2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.families",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES), default=list(FIGURES))
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    configure_inference_thread()
    silence_warnings()
    for figure in arguments.figures:
        rows = list(FIGURES[figure](arguments.layers, arguments.rounds))
        print(table(["figure", "found", "must be"], rows), flush=True)
        result = {name: {"layers": arguments.layers, "found": found, "must": must} for name, found, must in rows}
        update("families", result, details={})


if __name__ == "__main__":
    main()
