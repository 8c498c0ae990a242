"""Measures sentence vectors.

On STS-B: the rank correlation with human scores, and the cosine of unrelated sentences. On translations: whether the
vector of a Chinese sentence is nearest to that of its translation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from training.data.corpus import Array
from training.data.similarity_table import Record, read_table
from training.data.tatoeba import Pair
from training.model.model import Bert, Packed

POOLINGS = ("cls", "mean", "pooler")
BATCH_TEXTS = 32
APART = 500  # lines of STS-B between two sentences that are taken as unrelated
Vectors = dict[str, dict[str, Array]]  # by text and pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """By pooling."""

    test: dict[str, float]  # Spearman's rank correlation of cosine and human score
    dev: dict[str, float]
    unrelated: dict[str, float]  # mean cosine


def measure_similarity(model: Bert, tokenizer: Tokenizer, *, table: Path) -> Similarity:
    records = [record for record in read_table(table) if record["split"] in ("dev", "test")]
    vectors = embed(model, tokenizer, (record[side] for record in records for side in ("sentence1", "sentence2")))
    return Similarity(
        test=correlate(vectors, [record for record in records if record["split"] == "test"]),
        dev=correlate(vectors, [record for record in records if record["split"] == "dev"]),
        unrelated=mean_cosines(vectors, [r["sentence1"] for r in records if r["split"] == "test"]),
    )


def correlate(vectors: Vectors, records: list[Record]) -> dict[str, float]:
    scores = np.asarray([float(record["score"]) for record in records])
    pairs = [(vectors[record["sentence1"]], vectors[record["sentence2"]]) for record in records]
    return {p: spearman(np.asarray([cosine(a[p], b[p]) for a, b in pairs]), scores) for p in POOLINGS}


def mean_cosines(vectors: Vectors, texts: list[str]) -> dict[str, float]:
    """Of each text and the one APART lines later."""
    pairs = [(vectors[a], vectors[b]) for a, b in zip(texts, texts[APART:], strict=False)]
    return {p: float(np.mean([cosine(a[p], b[p]) for a, b in pairs])) for p in ("cls", "mean")}


def measure_retrieval(model: Bert, tokenizer: Tokenizer, *, pairs: list[Pair]) -> dict[str, float]:
    """By pooling: the share of Chinese sentences whose nearest English one is the translation; empty without pairs."""
    if not pairs:
        return {}
    english = list(dict.fromkeys(one for one, _ in pairs))
    vectors = embed(model, tokenizer, (text for pair in pairs for text in pair))
    wanted = np.asarray([english.index(one) for one, _ in pairs])
    found = {}
    for pooling in POOLINGS:
        ours, theirs = (
            np.stack([vectors[text][pooling] / np.linalg.norm(vectors[text][pooling]) for text in texts])
            for texts in ([other for _, other in pairs], english)
        )
        found[pooling] = float(((ours @ theirs.T).argmax(1) == wanted).mean())
    return found


def embed(model: Bert, tokenizer: Tokenizer, texts: Iterable[str]) -> Vectors:
    """Texts of the same number of tokens share a pass, so that nothing is padded."""
    by_size: dict[int, list[tuple[str, list[int]]]] = {}
    for text in dict.fromkeys(texts):
        ids = tokenizer.encode(text).ids
        by_size.setdefault(len(ids), []).append((text, ids))
    found: Vectors = {}
    for group in by_size.values():
        for at in range(0, len(group), BATCH_TEXTS):
            batch = group[at : at + BATCH_TEXTS]
            with torch.inference_mode():
                hidden = model.encoder(pack_equal([ids for _, ids in batch]))
                pooled = torch.tanh(model.pooler(hidden[:, 0]))
            for (text, _), row, pool in zip(batch, hidden, pooled, strict=True):
                found[text] = {"cls": row[0].numpy(), "mean": row.mean(0).numpy(), "pooler": pool.numpy()}
    return found


def pack_equal(ids: list[list[int]]) -> Packed:
    """One text a row, all of the same number of tokens."""
    zeros = torch.zeros(len(ids), len(ids[0]), dtype=torch.int64)
    none = torch.zeros(0, dtype=torch.int64)
    positions = zeros + torch.arange(len(ids[0]))
    return Packed(ids=torch.tensor(ids), segments=zeros, positions=positions, blocks=zeros, masked=none, starts=none)


def cosine(left: Array, right: Array) -> float:
    return float(left @ right / (np.linalg.norm(left) * np.linalg.norm(right)))


def spearman(left: Array, right: Array) -> float:
    return float(np.corrcoef(ranks(left), ranks(right))[0, 1])


def ranks(values: Array) -> Array:
    """Ranks from 0, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[inverse]
