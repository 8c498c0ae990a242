"""Makes the golden answers about tokens: tokenizing, decoding, vectors of tokens, and sparse vectors.

    python tests/golden/makers/make_tokens.py

It needs torch, transformers and sentence-transformers 6.2.0; the tests need none of them. `tokens/FAMILY.json` has the
answers for the golden checkpoint of each family. `splade/ACTIVATION` has the files that sentence-transformers' sparse
encoder adds to the golden BERT, and its answers.
"""

import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from checkpoints import CHECKPOINTS, FAMILIES
from files import GOLDEN, emptied, report, rounded, write_json
from make import loaded, tokenizer_of
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from texts import PAIRS, TEXTS

ADDED = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_SpladePooling")
ALONE = (*TEXTS[:5], TEXTS[6])
LONG = "The cat sat on the mat, and the dog walked to the river. " * 4


def tokens(tokenizer: object, text: str, pair: str | None) -> dict[str, object]:
    found = tokenizer(
        text, pair, return_offsets_mapping=True, return_special_tokens_mask=True, return_token_type_ids=True
    )
    ids = found["input_ids"]
    return {
        "text": text,
        "text_pair": pair,
        "ids": ids,
        "types": found["token_type_ids"],
        "pieces": tokenizer.convert_ids_to_tokens(ids),
        "spans": found["offset_mapping"],
        "special": found["special_tokens_mask"],
        "words": found.word_ids(),
        "sides": found.sequence_ids(),
        "decoded": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        "decoded_special": tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False),
    }


def vectors(folder: Path, tokenizer: object, text: str) -> list[list[float]]:
    """The last layer's state of each token."""
    model = loaded(transformers.AutoModel, folder)
    states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    return rounded(states, 6)


def weights(encoder: SparseEncoder, text: str) -> dict[str, list[float]]:
    row = encoder.encode([text], convert_to_sparse_tensor=False)[0]
    ids = torch.nonzero(row).flatten().tolist()
    return {"ids": ids, "weights": rounded(row[ids], 6)}


def sparse_encoder(folder: Path, activation: str) -> SparseEncoder:
    transformer = Transformer(str(folder), transformer_task="fill-mask")
    return SparseEncoder(modules=[transformer, SpladePooling("max", activation)], device="cpu")


def make(name: str) -> None:
    folder, tokenizer = GOLDEN / name, tokenizer_of(CHECKPOINTS[name], GOLDEN / name)
    encoder = sparse_encoder(folder, "relu")
    content = {
        "tokens": [tokens(tokenizer, *pair) for pair in [*((text, None) for text in TEXTS), *PAIRS]],
        "vectors": [{"text": text, "vectors": vectors(folder, tokenizer, text)} for text in ALONE],
        "sparse": [{"text": text, **weights(encoder, text)} for text in (*ALONE, LONG)],
    }
    write_json(GOLDEN / "tokens" / f"{name}.json", content)


def make_splade(activation: str) -> None:
    folder = emptied(GOLDEN / "splade" / activation)
    encoder = sparse_encoder(GOLDEN / "bert", activation)
    with tempfile.TemporaryDirectory() as saved:
        encoder.save_pretrained(saved)
        for added in ADDED:
            source = Path(saved) / added
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / added)
    answers = [{"text": text, **weights(encoder, text)} for text in (*ALONE, LONG)]
    write_json(folder / "answers.json", answers)
    report(folder)


if __name__ == "__main__":
    for name in FAMILIES:
        make(name)
    for activation in ("relu", "log1p_relu"):
        make_splade(activation)
