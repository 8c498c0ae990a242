"""Measures a trained network on held-out articles: masked tokens and next sentences; fills single masks."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.data.batches import IGNORE, MASK, Packer, Rows
from training.data.corpus import Array, Source
from training.model.model import Bert, Packed
from training.model.objective import as_tensors
from training.model.precision import mixed_precision
from training.report.figures import HeldOut

ROW_LENGTH = 128
BATCH_ROWS = 32
LONG_PAIR = 64


def measure_held_out(model: Bert, *, sources: list[Source], rounds: int) -> HeldOut:
    shares = [float(len(source.tokens)) for source in sources]
    packer = Packer(sources, shares=shares, vocabulary_size=model.score_bias.numel())
    counts = np.zeros(7)
    for turn in range(rounds):
        rows = packer.make_rows(count=BATCH_ROWS, length=ROW_LENGTH, seed=(2026, turn))
        counts += count_right(model, rows)
    tokens, as_trained, masked, pairs, judged, long_pairs, long_judged = counts
    return HeldOut(
        masked_tokens=int(tokens),
        bert_rule=as_trained / tokens,
        all_masked=masked / tokens,
        pairs=int(pairs),
        next_sentence=judged / max(pairs, 1),
        long_pairs=int(long_pairs),
        next_sentence_long=long_judged / max(long_pairs, 1),
    )


def count_right(model: Bert, rows: Rows) -> Array:
    """[7]: masked tokens, right under BERT's rule, right if all are [MASK], pairs, right, long pairs, right."""
    hidden = rows.ids.copy()
    hidden.ravel()[rows.masked] = MASK
    scores, pair_scores = predict(model, rows)
    all_masked, _ = predict(model, replace(rows, ids=hidden))
    counted = rows.labels != IGNORE
    right = (pair_scores.argmax(1).numpy() == rows.labels) & counted
    long = counted & (pair_lengths(rows) >= LONG_PAIR)
    hits = [(guess.argmax(1).numpy() == rows.targets).sum() for guess in (scores, all_masked)]
    return np.asarray(
        [len(rows.targets), *hits, counted.sum(), right.sum(), long.sum(), (right & long).sum()], dtype=np.float64
    )


def pair_lengths(rows: Rows) -> Array:
    """[starts]: the tokens of the sequence that each start belongs to."""
    length = rows.ids.shape[1]
    row, blocks = rows.starts // length, rows.blocks.ravel()[rows.starts]
    sizes: Array = (rows.blocks[row] == blocks[:, None]).sum(1)
    return sizes


def predict(model: Bert, rows: Rows) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(), mixed_precision("cpu"):  # as trained
        scores, pair_scores = model(as_tensors(rows, device="cpu")[0])
    return scores.float(), pair_scores.float()


def pack_one(ids: list[int], *, segments: list[int], masked: Iterable[int]) -> Packed:
    size = len(ids)
    return Packed(
        ids=torch.tensor([ids]),
        segments=torch.tensor([segments]),
        positions=torch.arange(size)[None],
        blocks=torch.zeros(1, size, dtype=torch.int64),
        masked=torch.tensor(list(masked), dtype=torch.int64),
        starts=torch.zeros(1, dtype=torch.int64),
    )


def fill(model: Bert, tokenizer: Tokenizer, text: str, *, count: int) -> list[tuple[str, float]]:
    """The `count` most probable tokens for the first [MASK], with their probabilities."""
    encoded = tokenizer.encode(text)
    packed = pack_one(encoded.ids, segments=encoded.type_ids, masked=[encoded.ids.index(MASK)])
    with torch.inference_mode():
        best = model(packed)[0][0].softmax(-1).topk(count)
    return [
        (str(tokenizer.id_to_token(i)), p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def probability_of_next(model: Bert, tokenizer: Tokenizer, first: str, second: str) -> float:
    encoded = tokenizer.encode(first, second)
    with torch.inference_mode():
        _, pair_scores = model(pack_one(encoded.ids, segments=encoded.type_ids, masked=[]))
    return float(pair_scores.softmax(-1)[0, 0])
