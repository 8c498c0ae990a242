"""The promise that no peer makes: a text gets the same bits alone and among any others, in fp32 and in int8."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.harness.checkpoints import REST, TINY, weights
from model_export.artifact.batch import Row, Tokens
from model_export.export import export
from service.artifact import open_artifact
from service.engine.runner import ModelRunner
from service.scheduling.concurrency import Concurrency
from tests.paths import GOLDEN, SAMPLE

BERT = GOLDEN / "bert"
FILL = frozenset({"top_logits", "top_ids", "log_sum_exp"})
ASKED = [
    frozenset({"cls"}),
    frozenset({"pooler", "pair"}),
    FILL,
    FILL | {"target_logits"},
    frozenset({"mean"}),
    frozenset({"cls", "mean"}),
]


def sequences(vocabulary: int, longest: int) -> list[Tokens]:
    """Texts of every length class, asking for everything there is."""
    random = np.random.default_rng(7)
    lengths = [*range(2, 40), *random.integers(40, longest + 1, 26).tolist()]
    result = []
    for i, length in enumerate(lengths):
        outputs = ASKED[i % len(ASKED)]
        masks = tuple(sorted(random.choice(length, min(length, 2), replace=False).tolist())) if outputs >= FILL else ()
        ids = random.integers(5, vocabulary, length, dtype=np.int32)
        targets = (6, 9) if "target_logits" in outputs else ()
        result.append(
            Tokens(
                ids=ids,
                types=(ids % 2).astype(np.int32),
                outputs=outputs,
                masks=masks,
                top_k=1 + i % 90,
                targets=targets,
            )
        )
    return result


def asked(text: Tokens, row: Row) -> Row:
    """Without the candidates that only a neighbour asked for."""
    return {name: array[:, : text.top_k] if name in ("top_logits", "top_ids") else array for name, array in row.items()}


def equal(one: Row, other: Row) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("checkpoint", [BERT, SAMPLE], ids=["golden", "sample"])
def test_an_answer_does_not_depend_on_its_neighbours(checkpoint: Path, precision: str, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "artifact", precision=precision)
    runner = ModelRunner(open_artifact(tmp_path / "artifact"), threads=2, concurrency=Concurrency(2, per_core=True))
    runner.open()
    manifest = runner.artifact.manifest
    texts = sequences(manifest.sizes["vocabulary"], min(400, manifest.max_tokens))
    alone = [runner.run_sync([text])[0][0] for text in texts]
    random = np.random.default_rng(8)
    for all_cores in (True, False, False):  # on all cores, and in a lane
        order = random.permutation(len(texts))
        for company in np.array_split(order, 4):
            rows, _ = runner.run_sync([texts[i] for i in company], all_cores=all_cores)
            changed = [
                len(texts[i]) for i, row in zip(company, rows, strict=True) if not equal(asked(texts[i], row), alone[i])
            ]
            assert changed == [], "lengths of the texts whose answer changed in company"
    runner.close()


def test_long_texts_keep_their_bits_where_heads_and_channels_are_few(tmp_path: Path) -> None:
    """Where the products add up larger blocks, or are shared out among threads by channel."""
    config = TINY | {"hidden_size": 128, "intermediate_size": 256}
    positions = np.random.default_rng(9).normal(0, 0.02, (1024, 128)).astype(np.float32)
    save_file(
        weights(config) | {"bert.embeddings.position_embeddings.weight": positions}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(REST | config | {"max_position_embeddings": 1024}), "utf-8")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]), "utf-8")
    export(tmp_path, tmp_path / "artifact")
    random, kinds = np.random.default_rng(7), (frozenset({"cls"}), frozenset({"mean"}))
    ids = [random.integers(5, 1024, length, dtype=np.int32) for length in (1000, 300, 200, 40, 17, 700, 150)]
    texts = [Tokens(ids=one, types=np.zeros_like(one), outputs=outputs) for one in ids for outputs in kinds]
    answers = []
    for threads in (1, 2):
        runner = ModelRunner(open_artifact(tmp_path / "artifact"), threads=threads)
        runner.open()
        answers += [[runner.run_sync([text])[0][0] for text in texts], runner.run_sync(texts)[0]]
        runner.close()
    for rows in zip(*answers, strict=True):
        assert all(equal(row, rows[0]) for row in rows)
