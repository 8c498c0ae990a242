"""Makes the golden ColBERT and BGE-M3 checkpoints: files over golden checkpoints, and what their authors compute.

    python tests/golden/makers/make_multi_vectors.py

It needs torch, transformers and sentence-transformers 6.2.0; the tests need none of them. `multi-vectors/NAME` has the
files that the tests copy over the checkpoint `base`; `projection.safetensors` holds weights to add to its own.
`answers.json` has the vectors of queries and documents, [tokens, width], their scores, and of BGE-M3 the weights of
words. They are computed in float64 as ColBERT's, PyLate's and FlagEmbedding's sources say, one text at a time; for
ColBERT sentence-transformers' MultiVectorEncoder must give the same.
"""

import shutil
import string
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from files import GOLDEN, read_json, report, rounded, write_json
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from torch.nn.functional import normalize

FOLDER = GOLDEN / "multi-vectors"
QUERIES = ("the cat", "Where is tea?", "我爱北京", "a")
DOCUMENTS = (
    "The cat sat on the mat.",
    "hello, world! (we like tea)",
    "我爱北京天安门。",
    "-- a cold day, in the rain...",
    "The dog walked to the river, and it was warm. " * 3,
)
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
]
POOLED = [
    MODULES[0],
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
STANFORD = {  # of artifact.metadata
    "dim": 12,
    "similarity": "cosine",
    "query_token_id": "0",
    "doc_token_id": "1",
    "query_maxlen": 24,
    "doc_maxlen": 60,
    "mask_punctuation": True,
    "attend_to_mask_tokens": False,
}
PYLATE = {  # of config_sentence_transformers.json; ModernBERT's windows reach 6 tokens
    "model_type": "ColBERT",
    "prompts": {},
    "query_prefix": "x",
    "document_prefix": "z",
    "query_length": 9,
    "document_length": 60,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": [*string.punctuation, "the"],
}
CASES = {
    "stanford": ("bert", STANFORD),
    "pylate": ("modernbert", PYLATE),
    "pylate-attended": ("mpnet", PYLATE | {"query_length": 20, "attend_to_expansion_tokens": True}),
    "pylate-relative": ("mpnet", PYLATE | {"query_length": 20, "skiplist_words": []}),
    "pylate-plain": ("roberta", PYLATE | {"query_prefix": "", "document_prefix": "", "do_query_expansion": False}),
}
NAMES = {  # PyLate's -> Stanford's
    "query_prefix": "query_token_id",
    "document_prefix": "doc_token_id",
    "query_length": "query_maxlen",
    "document_length": "doc_maxlen",
    "attend_to_expansion_tokens": "attend_to_mask_tokens",
}


def opened(name: str) -> tuple[torch.nn.Module, object]:
    kind = {"attn_implementation": "eager", "dtype": torch.float64}
    model = transformers.AutoModel.from_pretrained(GOLDEN / name, **kind).eval()
    return model, transformers.AutoTokenizer.from_pretrained(GOLDEN / name)


def vectors(base: str, layers: torch.nn.Sequential, settings: dict[str, object], text: str, side: str) -> torch.Tensor:
    """Of a query or a document, [tokens, width], by PyLate's settings."""
    model, tokenizer = opened(base)
    prefix, length = settings[f"{side}_prefix"], int(settings[f"{side}_length"])
    ids = tokenizer(text, truncation=True, max_length=length - bool(prefix))["input_ids"]
    if prefix:
        ids.insert(1, tokenizer.convert_tokens_to_ids(prefix))
    attended = [1] * len(ids)
    if side == "query" and settings["do_query_expansion"]:
        attended += [int(settings["attend_to_expansion_tokens"])] * (length - len(ids))
        ids += [tokenizer.mask_token_id] * (length - len(ids))
    states = model(input_ids=torch.tensor([ids]), attention_mask=torch.tensor([attended])).last_hidden_state[0]
    found = normalize(layers(states), dim=-1)
    skipped = {tokenizer.convert_tokens_to_ids(word) for word in settings["skiplist_words"]} - {tokenizer.unk_token_id}
    kept = [side == "query" or token_id not in skipped for token_id in ids]
    return found[torch.tensor(kept)]


def max_sim(query: torch.Tensor, document: torch.Tensor) -> float:
    return float((query @ document.T).max(dim=1).values.sum())


def linear(width: int, out: int, *, bias: bool) -> torch.nn.Linear:
    made = torch.nn.Linear(width, out, bias=bias)
    for parameter in made.parameters():
        parameter.normal_(0.0, 0.3)
    return made


def make_colbert(name: str, base: str, stated: dict[str, object]) -> None:
    torch.manual_seed(7)
    folder, is_stanford = FOLDER / name, name == "stanford"
    shutil.rmtree(folder, ignore_errors=True)
    projection = linear(32, 12, bias=not is_stanford)
    settings = stated
    if is_stanford:
        settings = {ours: stated[theirs] for ours, theirs in NAMES.items()}
        settings |= {"do_query_expansion": True, "skiplist_words": list(string.punctuation)}
        write_json(folder / "artifact.metadata", stated)
        save_file({"linear.weight": projection.weight.data}, folder / "projection.safetensors")
        config = read_json(GOLDEN / base / "config.json")
        write_json(folder / "config.json", config | {"architectures": ["HF_ColBERT"]})
    else:
        config = {"in_features": 32, "out_features": 12, "bias": True}
        config["activation_function"] = "torch.nn.modules.linear.Identity"
        write_json(folder / "config_sentence_transformers.json", stated)
        write_json(folder / "modules.json", MODULES)
        write_json(folder / "1_Dense" / "config.json", config)
        save_file(
            {f"linear.{key}": one.data for key, one in projection.named_parameters()},
            folder / "1_Dense" / "model.safetensors",
        )
    layers = torch.nn.Sequential(projection.double())
    queries = [vectors(base, layers, settings, text, "query") for text in QUERIES]
    documents = [vectors(base, layers, settings, text, "document") for text in DOCUMENTS]
    compare(folder, base, settings, queries, documents)
    finish(folder, base, queries, documents, 1)


def compare(
    folder: Path, base: str, settings: dict[str, object], queries: list[torch.Tensor], documents: list[torch.Tensor]
) -> None:
    """With sentence-transformers' encoder of the same folder."""
    with tempfile.TemporaryDirectory() as whole:
        shutil.copytree(GOLDEN / base, whole, dirs_exist_ok=True)
        shutil.copytree(folder, whole, dirs_exist_ok=True)
        if (folder / "projection.safetensors").exists():
            weights = load_file(Path(whole) / "model.safetensors") | load_file(folder / "projection.safetensors")
            save_file(weights, Path(whole) / "model.safetensors", {"format": "pt"})
        if base == "mpnet":  # it puts the marker before the text, and WordPiece would read both as one word
            spaced = {f"{side}_prefix": settings[f"{side}_prefix"] + " " for side in ("query", "document")}
            write_json(Path(whole) / "config_sentence_transformers.json", settings | spaced)
        encoder = MultiVectorEncoder(whole, device="cpu", model_kwargs={"attn_implementation": "eager"})
        for texts, encode, own in (
            (QUERIES, encoder.encode_query, queries),
            (DOCUMENTS, encoder.encode_document, documents),
        ):
            for text, want in zip(texts, own, strict=True):
                got = encode([text], convert_to_numpy=True)[0]
                assert got.shape == tuple(want.shape), (text, got.shape, want.shape)
                assert np.abs(got - want.numpy()).max() < 1e-5, text


def make_bge_m3() -> None:
    torch.manual_seed(7)
    base, folder = "xlm-roberta", FOLDER / "bge-m3"
    shutil.rmtree(folder, ignore_errors=True)
    write_json(folder / "modules.json", POOLED)
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_cls_token": True})
    colbert, sparse = linear(32, 32, bias=True), linear(32, 1, bias=True)
    torch.save(colbert.state_dict(), folder / "colbert_linear.pt")
    torch.save(sparse.state_dict(), folder / "sparse_linear.pt")
    model, tokenizer = opened(base)
    unused = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    found, words = [], []
    for text in (*QUERIES, *DOCUMENTS):
        ids = tokenizer(text)["input_ids"]
        states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        found.append(normalize(colbert.double()(states[1:]), dim=-1))
        weights = torch.relu(sparse.double()(states))[:, 0].tolist()
        largest: dict[int, float] = {}
        for token_id, weight in zip(ids, weights, strict=True):
            if token_id not in unused and weight > largest.get(token_id, 0.0):
                largest[token_id] = weight
        ordered = {str(token_id): rounded(largest[token_id]) for token_id in sorted(largest)}
        words.append({"text": text, "weights": ordered})
    finish(folder, base, found[: len(QUERIES)], found[len(QUERIES) :], 0, sparse=words)


def finish(
    folder: Path, base: str, queries: list[torch.Tensor], documents: list[torch.Tensor], is_sum: int, **more: object
) -> None:
    """`is_sum` of 0: the scores are means over a query's vectors, as FlagEmbedding's colbert_score."""
    scores = [[max_sim(q, d) / (1 if is_sum else len(q)) for d in documents] for q in queries]
    answers = {
        "base": base,
        "queries": [{"text": text, "vectors": rounded(one)} for text, one in zip(QUERIES, queries, strict=True)],
        "documents": [{"text": text, "vectors": rounded(one)} for text, one in zip(DOCUMENTS, documents, strict=True)],
        "scores": scores,
    }
    write_json(folder / "answers.json", answers | more)
    report(folder)


if __name__ == "__main__":
    for name, (base, settings) in CASES.items():
        make_colbert(name, base, settings)
    make_bge_m3()
