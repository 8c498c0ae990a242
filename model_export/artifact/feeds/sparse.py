"""The inputs of the output `sparse`: a weight for each word of the vocabulary, from all tokens of a text. NumPy alone.

SPLADE (Formal et al. 2021, "SPLADE v2"): log(1 + relu(logit)) of the masked-LM head, the maximum over a text's tokens.
The logits of all tokens would be [tokens, vocabulary]. The graph computes BLOCK tokens at a time, of one text or of
several, and keeps only maxima: first of PART tokens of one text, then of the neighbouring parts of a text.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.placement import Feeds, Ints

BLOCK = 32  # tokens in a product, always: with another number, ONNX Runtime adds up in another order
PART = 8  # tokens of one text
PARTS = BLOCK // PART
SHIFTS = (1, 2, 4)  # a maximum of neighbours at these distances covers the part before a block and all of its own
SECOND_LOG = "log1p_relu"  # the activation log(1 + log(1 + relu(logit)))
NO_TEXT = -1  # owner of a part that only fills a block


def word_weights(logits: NDArray[np.generic], activation: str) -> NDArray[np.float64]:
    """The weights of words of these largest logits, all above zero; `activation` is that of the manifest."""
    weights = np.log1p(logits.astype(np.float64))
    return np.log1p(weights) if activation == SECOND_LOG else weights


def sparse_feeds(lengths: Ints, starts: Ints) -> Feeds:
    """The inputs for texts of `lengths` whose first tokens are the rows `starts` of the last layer; both [texts]."""
    if not len(lengths):
        return NOTHING
    counts = _parts(lengths)
    owners = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    tokens = within[:, None] * PART + np.arange(PART)
    tokens = np.where(tokens < lengths[owners][:, None], tokens, 0) + starts[owners][:, None]
    fill = -len(owners) % PARTS
    tokens = np.concatenate([tokens, np.full((fill, PART), starts[0])]).astype(np.int32)
    blocks = np.append(owners, np.full(fill, NO_TEXT)).reshape(-1, PARTS)
    return {
        "sparse_tokens": tokens.reshape(-1, BLOCK),
        "sparse_joins": _joins(blocks),
        "sparse_ends": _ends(blocks),
        "sparse_offsets": _offsets(len(blocks)),
        "sparse_count": np.array([len(blocks)], np.int64),
    }


def sparse_spans(places: NDArray[np.generic], lengths: Sequence[int]) -> list[slice]:
    """The rows of `places` [weights, 2], the part and the id of each weight, that belong to each of the texts."""
    last = np.cumsum(_parts(np.array(lengths))) - 1
    starts, ends = (np.searchsorted(places[:, 0], last, side=side).tolist() for side in ("left", "right"))
    return list(map(slice, starts, ends))


def _parts(lengths: NDArray[np.integer]) -> NDArray[np.integer]:
    return np.asarray(-(-lengths // PART))


def _joins(owners: NDArray[np.integer]) -> NDArray[np.float32]:
    """[blocks, shifts, 1 + parts, 1]: 0 where a part and the one at this distance before it are of one text, else -inf.

    The first part of a block is the last one of the block before.
    """
    before = np.append(NO_TEXT - 1, owners[:-1, -1])
    all_parts = np.column_stack([before, owners])
    joins = np.full((len(owners), len(SHIFTS), 1 + PARTS, 1), -np.inf, np.float32)
    for i, shift in enumerate(SHIFTS):
        joins[:, i, shift:, 0][all_parts[:, shift:] == all_parts[:, :-shift]] = 0
    return joins


def _ends(owners: NDArray[np.integer]) -> NDArray[np.float32]:
    """[blocks, parts, 1]: 1 where a text ends."""
    flat = owners.reshape(-1)
    ends = (flat != np.append(flat[1:], NO_TEXT)) & (flat != NO_TEXT)
    return np.asarray(ends.reshape(-1, PARTS, 1), np.float32)


def _offsets(blocks: int) -> Ints:
    """[blocks, 2, 1]: what is added to the part in its block, and to the id."""
    return np.column_stack([np.arange(blocks) * PARTS, np.zeros(blocks)]).astype(np.int32)[:, :, None]


NOTHING: Feeds = {
    "sparse_tokens": np.zeros((0, BLOCK), np.int32),
    "sparse_joins": np.zeros((0, len(SHIFTS), 1 + PARTS, 1), np.float32),
    "sparse_ends": np.zeros((0, PARTS, 1), np.float32),
    "sparse_offsets": np.zeros((0, 2, 1), np.int32),
    "sparse_count": np.zeros(1, np.int64),
}
