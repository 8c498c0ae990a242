"""Writes the file of sentence vectors for the third loss, from a teacher in a folder. Needs `transformers`.

The teacher is an English sentence-transformer: a BERT with mean pooling. A Chinese sentence gets the vector of its
English translation. For a narrower network the vectors are centred and rotated to its width by their principal
directions, and then to those of the model that the run starts from, so that it has nothing to unlearn.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoTokenizer, BertModel

from training.data.articles import sample_sentences
from training.data.corpus import Array
from training.model.precision import mixed_precision

BATCH_TOKENS = 2048
MAX_TOKENS = 64
SAMPLED = 4  # one vector in SAMPLED is enough for the directions
log = logging.getLogger(__name__)


def write_vectors(
    *,
    teacher: Path,
    work: Path,
    corpora: Iterable[Path],
    reserved: Callable[[str], bool],
    count: int,
    width: int,
    start: Path | None,
    output: Path,
) -> None:
    """Reads WORK/pairs-{en,zh}.txt and `count` sentences of the English corpus files, without `reserved` ones."""
    english, chinese = ((work / f"pairs-{one}.txt").read_text("utf-8").splitlines() for one in ("en", "zh"))
    texts = list(dict.fromkeys([*english, *sample_sentences(corpora, reserved=reserved, count=count)]))
    log.info("%d English sentences", len(texts))
    vectors = embed_sentences(teacher, texts)
    if width < vectors.shape[1]:
        vectors = reduce_width(vectors, width=width)
        if start is not None:
            sampled = slice(None, None, SAMPLED)
            vectors = vectors @ rotation(vectors[sampled], embed_sentences(start, texts[sampled]))
    rows = {text: row for row, text in enumerate(texts)}
    translation = dict(zip(chinese, english, strict=True))
    group = [*range(len(texts)), *(rows[one] for one in translation.values())]
    tokenizer = Tokenizer.from_file(str(work / "vocabulary" / "tokenizer.json"))
    encoded = tokenizer.encode_batch_fast([*texts, *translation], add_special_tokens=False)
    ids = [np.asarray(one.ids, dtype=np.uint16) for one in encoded]
    starts = np.cumsum([0, *map(len, ids)])
    np.savez(output, tokens=np.concatenate(ids), starts=starts, group=group, vectors=vectors.astype(np.float16))
    log.info("%s: %d sentences, %d tokens", output, len(ids), starts[-1])


def embed_sentences(teacher: Path, texts: list[str]) -> Array:
    """[texts, width of the teacher] of length 1; texts of about the same length share a batch."""
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    model = BertModel.from_pretrained(teacher, add_pooling_layer=False).eval()
    encoded = tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"]
    order = sorted(range(len(texts)), key=lambda number: len(encoded[number]))
    found = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
    while order:
        count = max(1, BATCH_TOKENS // len(encoded[order[0]]))
        batch, order = order[:count], order[count:]
        padded = tokenizer.pad({"input_ids": [encoded[number] for number in batch]}, return_tensors="pt")
        with torch.inference_mode(), mixed_precision("cpu"):
            hidden = model(**padded).last_hidden_state.float()
        mask = padded["attention_mask"][:, :, None]
        found[batch] = functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).numpy()
    return found


def reduce_width(vectors: Array, *, width: int) -> Array:
    """[texts, width] of length 1: centred, along the directions of the largest variance.

    Raises ValueError if there are fewer texts than directions.
    """
    if len(vectors) < width:
        raise ValueError(f"{len(vectors)} sentences give fewer than {width} directions: add text to the corpus")
    centred = vectors - vectors.mean(0)
    stride = min(SAMPLED, len(vectors) // width)
    _, _, directions = np.linalg.svd(centred[::stride], full_matrices=False)
    reduced = centred @ directions[:width].T
    unit: Array = reduced / np.linalg.norm(reduced, axis=1, keepdims=True)
    return unit


def rotation(vectors: Array, wanted: Array) -> Array:
    """[width, width], orthogonal: takes `vectors` [texts, width] as near to `wanted` as one can (Schönemann 1966)."""
    left, _, right = np.linalg.svd(vectors.T @ wanted)
    found: Array = left @ right
    return found
