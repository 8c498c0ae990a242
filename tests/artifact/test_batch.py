"""The ragged batch: packing keeps each token once and both placement rules, splitting returns each sequence's rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Tokens, pack, split
from packbert.model_export.artifact.manifest import BF16_ROWS, PACKED_ROWS
from packbert.model_export.artifact.rows import ALIGNMENT, K_BLOCK, LARGEST_BLOCK, MEANS, PART, PARTS, SHIFTS, place

SEQUENCE_OUTPUTS = [
    ("cls",),
    ("pooler", "pair"),
    ("mean",),
    ("tags",),
    ("top_ids",),
    ("cls", "top_ids"),
    ("mean", "top_ids"),
]


def text(length: int, *outputs: str, **more: Any) -> Tokens:
    ids = np.arange(length, dtype=np.int32)
    return Tokens(ids=ids, types=ids * 0, outputs=frozenset(outputs), **more)


@st.composite
def sequences(draw: st.DrawFn) -> list[Tokens]:
    result = []
    for number in range(draw(st.integers(1, 12))):
        length = draw(st.integers(1, 300))
        outputs = draw(st.sampled_from(SEQUENCE_OUTPUTS))
        chosen = draw(st.sets(st.integers(0, length - 1), min_size=1, max_size=3)) if "top_ids" in outputs else ()
        one = text(length, *outputs, masks=tuple(sorted(chosen)))
        result.append(replace(one, ids=one.ids + 1000 * number))
    return result


@given(st.lists(st.integers(1, 2048), min_size=1, max_size=40))
def test_sequences_obey_the_placement_rules_and_never_overlap(lengths: list[int]) -> None:
    width = -(-max(lengths) // ALIGNMENT) * ALIGNMENT
    slots, rows = place(lengths, width)
    taken = np.zeros(rows * width, bool)
    for slot, length in zip(slots, lengths, strict=True):
        start = slot % width
        assert start % ALIGNMENT == 0
        for block in (K_BLOCK, 256, 512, LARGEST_BLOCK):
            assert start % block == 0 or start % block + length <= block
        assert start + length <= width
        assert not taken[slot : slot + length].any()
        taken[slot : slot + length] = True


@given(st.lists(st.integers(1, 2048), min_size=1, max_size=40))
def test_no_row_has_more_means_than_the_narrowest_block(lengths: list[int]) -> None:
    feeds = pack([text(length, "mean") for length in lengths]).feeds
    assert 2 <= feeds["mean_weights"].shape[1] <= MEANS
    assert len(set(feeds["mean_back"].tolist())) == len(lengths)
    np.testing.assert_allclose(feeds["mean_weights"].sum(axis=2).reshape(-1)[feeds["mean_back"]], 1, rtol=1e-4)


@given(sequences())
def test_each_token_is_once_in_the_rows_at_its_position(batch_of: list[Tokens]) -> None:
    feeds: Mapping[str, NDArray[Any]] = pack(batch_of).feeds
    rows = feeds["ids"][feeds["slot_tokens"]].reshape(-1)
    assert np.array_equal(rows[feeds["token_slots"]], feeds["ids"])
    assert len(feeds["ids"]) == sum(map(len, batch_of))  # none twice, none for padding
    owner = feeds["segments"].reshape(-1)
    assert (owner >= 0).sum() == len(feeds["ids"])
    assert np.array_equal(owner[feeds["token_slots"]], np.repeat(np.arange(len(batch_of)), [len(t) for t in batch_of]))
    assert feeds["positions"].tolist() == [i for tokens in batch_of for i in range(len(tokens))]


@given(sequences())
def test_split_returns_each_sequences_own_rows(batch_of: list[Tokens]) -> None:
    batch = pack(batch_of)
    feeds: Mapping[str, NDArray[Any]] = batch.feeds
    selected = feeds["ids"][feeds["chosen"]]  # in place of hidden states: each row is the id of its token
    queries = selected[feeds["query_chosen"]].reshape(-1)
    assert np.array_equal(queries[feeds["chosen_slots"]], selected)
    means = np.einsum("rmw,rw->rm", feeds["mean_weights"], selected[feeds["mean_slots"]].astype(np.float64)).reshape(-1)
    outputs = dict.fromkeys(("cls", "pooler", "pair"), selected[feeds["cls_index"]])
    outputs |= {"tags": selected[feeds["token_index"]], "top_ids": selected[feeds["mask_index"]]}
    rows: list[dict[str, NDArray[Any]]] = split(batch, outputs | {"mean": means[feeds["mean_back"]]})
    for tokens, row in zip(batch_of, rows, strict=True):
        first, chosen = tokens.ids[:1], tokens.ids[list(tokens.masks)]
        own = {"cls": first, "pooler": first, "pair": first, "tags": tokens.ids, "top_ids": chosen}
        assert set(row) == tokens.outputs
        for name, found in row.items():
            np.testing.assert_allclose(found, own.get(name, [tokens.ids.mean()]), rtol=1e-5 * (name == "mean"))


@pytest.mark.parametrize(("mode", "count"), [("cls", 1), ("lasttoken", 1), ("max", 40), ("mean", 40)])
def test_the_last_layer_computes_only_the_tokens_that_a_mode_reads(mode: str, count: int) -> None:
    assert len(pack([text(40, "sentence")], modes=[mode]).feeds["chosen"]) == count


def test_each_target_is_scored_at_each_mask() -> None:
    asked = [((1,), (7,)), ((2, 3), (8, 9))]
    batch = pack([text(5, "target_logits", masks=masks, targets=targets) for masks, targets in asked])
    assert batch.feeds["target_pairs"].tolist() == [[0, 7], [1, 8], [1, 9], [2, 8], [2, 9]]
    rows = split(batch, {"target_logits": np.arange(5)})
    assert [row["target_logits"].tolist() for row in rows] == [[0], [1, 2, 3, 4]]


def test_what_one_sequence_asks_for_the_batch_has() -> None:
    most = pack([text(4, "top_ids", masks=(1,), top_k=k) for k in (2, 7, 3)]).feeds["k"]
    assert most.tolist() == [7]
    prompted = pack([text(6, "mean", pooled_from=4)])  # a prompt counts in the mean, if not in the sentence vector
    assert np.count_nonzero(prompted.feeds["mean_weights"]) == 6
    with pytest.raises(ValueError, match="at least one sequence"):
        pack([])


def test_the_rows_of_a_sequence_follow_those_of_the_sequence_before() -> None:
    batch = pack([text(n, "tags", "top_ids", masks=(0,), top_k=1) for n in (2, 5, 3)])
    assert (batch.tokens, batch.slots) == (10, 48)  # with the unused slots of its row
    spans = batch.spans
    assert spans["token"] == [slice(0, 2), slice(2, 7), slice(7, 10)]
    assert spans["mask"] == [slice(0, 1), slice(1, 2), slice(2, 3)]


@pytest.mark.parametrize(("layout", "alignment"), [(PACKED_ROWS, 16), (BF16_ROWS, 32)])
def test_a_sequence_starts_where_its_answer_does_not_depend_on_the_others(layout: str, alignment: int) -> None:
    """The numbers were measured (docs/design/graph.md): smaller ones change answers with the rest of the batch."""
    lengths = [7, 20, 33, 90, 100, 5, 12, 300]
    feeds = pack([text(n, "tags") for n in lengths], layout=layout).feeds
    width = feeds["slot_tokens"].shape[1]
    first = np.cumsum([0, *lengths[:-1]])
    starts = feeds["token_slots"][first] % width
    assert (starts % alignment == 0).all()
    assert all(start % 128 + n <= 128 for start, n in zip(starts.tolist(), lengths, strict=True) if n <= 128)


@given(batch_of=sequences())
def test_a_text_alone_gets_its_own_ids_and_what_it_asks_for(batch_of: list[Tokens]) -> None:
    """The other inputs are kept for the next text of this length that asks the same."""
    for tokens in batch_of:
        other = replace(tokens, ids=tokens.ids + 1)
        alone, next_one, both = pack([tokens]), pack([other]), pack([tokens, tokens])
        assert np.array_equal(alone.feeds["ids"], tokens.ids)
        assert np.array_equal(next_one.feeds["ids"], other.ids)
        assert alone.owners == [tokens]
        assert alone.outputs == both.outputs
        assert alone.tokens == len(tokens)
        for name in ("cls_index", "mask_index", "chosen", "positions"):
            first = both.feeds[name][: len(alone.feeds[name])]
            assert np.array_equal(alone.feeds[name], first), name
            assert next_one.feeds[name] is alone.feeds[name], name


def test_a_sequence_that_fits_into_a_used_row_starts_no_new_one() -> None:
    slots, rows = place([16, 96, 32, 112], 128)
    assert (slots, rows) == ([112, 128, 128 + 96, 0], 2)


@given(st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=12))
def test_sparse_inputs_make_the_maximum_over_the_tokens_of_each_text(texts: list[tuple[int, bool]]) -> None:
    """With two numbers made of the id of each token in place of its logits, and the steps of the graph in NumPy."""
    random = np.random.default_rng(len(texts))
    outputs_of = {True: ("sparse_places", "sparse_logits"), False: ("cls",)}
    work = [
        replace(text(length, *outputs_of[own]), ids=random.integers(1, 1000, length, dtype=np.int32))
        for length, own in texts
    ]
    batch = pack(work)
    feeds: Mapping[str, NDArray[Any]] = batch.feeds
    assert feeds["sparse_count"].tolist() == [len(feeds["sparse_tokens"])]
    selected = np.concatenate([tokens.ids for tokens in work])[feeds["chosen"]].astype(np.float64)
    last, places, weights = np.zeros(2), [np.zeros((0, 2), np.int64)], [np.zeros(0)]
    for i, tokens_of_block in enumerate(feeds["sparse_tokens"]):
        logits = np.stack([selected[tokens_of_block], 1000 - selected[tokens_of_block]])
        maxima = np.vstack([last, logits.reshape(2, PARTS, PART).max(axis=2).T])
        for shift, join in zip(SHIFTS, feeds["sparse_joins"][i], strict=True):
            shifted = maxima[[max(0, part - shift) for part in range(1 + PARTS)]]
            maxima = np.maximum(maxima, shifted + join)
        ended = maxima[1:] * feeds["sparse_ends"][i]
        own = np.stack(np.nonzero(ended)) + feeds["sparse_offsets"][i]
        places.append(own.T)
        weights.append(ended[np.nonzero(ended)])
        last = maxima[PARTS]
    outputs = {
        "sparse_places": np.concatenate(places),
        "sparse_logits": np.concatenate(weights),
        "cls": selected[feeds["cls_index"]],
    }
    for tokens, row in zip(work, split(batch, outputs), strict=True):
        if "cls" in row:
            assert row["cls"].tolist() == [tokens.ids[0]]
        else:
            assert row["sparse_places"][:, 1].tolist() == [0, 1]
            assert row["sparse_logits"].tolist() == [tokens.ids.max(), 1000 - tokens.ids.min()]
