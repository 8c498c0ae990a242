"""The service's own task routes, those of text-embeddings-inference and its keys of /info, and those of tokens."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from ...tasks import answer, attention, choose, embed, fill_mask, pairs, sparse, tag, tokens, vectors, zero_shot
from ...tasks.defaults import ROOT_HEADS
from ...tasks.inputs import EmbedAllResponse, NspResponse, SimilarityResponse
from ...tasks.predict import PredictResponse
from .spec import Explained, TaskSpec

Info = Mapping[str, Any]  # the other keys of /info
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}  # of TEI, by our precision
TEI_ROUTES = {"/similarity": TaskSpec("similarity", embed.similarity, SimilarityResponse, of_tei=True)}
TOKEN_ROUTES = {
    "/tokenize": TaskSpec("tokenize", tokens.tokenize, tokens.TokenizeResponse),
    "/decode": TaskSpec("decode", tokens.decode, tokens.DecodeResponse),
    "/embed_all": TaskSpec("embed_all", vectors.embed_all, EmbedAllResponse, npy=True, of_tei=True),
    "/embed_sparse": TaskSpec("embed_sparse", sparse.embed_sparse, sparse.EmbedSparseResponse, of_tei=True),
}
ROUTES = {
    "/embed": TaskSpec("embed", vectors.embed_any, vectors.VectorsResponse, npy=True, of_tei=True),
    "/fill-mask": TaskSpec("fill_mask", fill_mask.fill_mask, fill_mask.FillMaskResponse, head=ROOT_HEADS["fill-mask"]),
    "/nsp": TaskSpec("nsp", pairs.nsp, NspResponse, head=ROOT_HEADS["nsp"]),
    "/predict": TaskSpec("predict", zero_shot.predict_labels, PredictResponse, of_tei=True, head=ROOT_HEADS["predict"]),
    "/tag": TaskSpec("tag", tag.tag, tag.TagResponse, head=ROOT_HEADS["tag"]),
    "/answer": TaskSpec("answer", answer.answer, answer.AnswerResponse, head=ROOT_HEADS["answer"]),
    "/choose": TaskSpec("choose", choose.choose, choose.ChooseResponse, head=ROOT_HEADS["choose"]),
    "/attention": TaskSpec("attention", attention.attention, attention.AttentionResponse, npy=True, head="attention"),
}


def model_type(info: Info) -> dict[str, Any]:
    """A classifier with a single label is a reranker, as in TEI. Of poolings, TEI's clients accept only these two."""
    if "labels" not in info["heads"]:
        steps = info["embedding"]["modules"] if info["pooling"] == "sentence" else [info["pooling"]]
        return {"embedding": {"pooling": "mean" if any("mean" in step for step in steps) else "cls"}}
    labels = info["labels"]
    names = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    numbers = {"label2id": {label: i for i, label in enumerate(labels)}}
    return {"reranker" if len(labels) == 1 else "classifier": names | numbers}


INFO: dict[str, tuple[Callable[[Info], Any], Any]] = {  # TEI's keys of /info -> their value, and an example of it
    "model_id": (itemgetter("model"), Explained("sample", "as text-embeddings-inference, like all keys from here on")),
    "model_sha": (lambda info: info["identity"]["revision"] or None, (str, None)),
    "model_dtype": (lambda info: DTYPES.get(info["precision"], info["precision"]), "float32"),
    "served_model_name": (itemgetter("model"), "sample"),
    "model_type": (model_type, Explained({"embedding": {"pooling": "mean"}}, "or reranker or classifier, with labels")),
    "max_concurrent_requests": (lambda info: info["limits"]["waiting_tokens"], Explained(200_000, "of one token each")),
    "max_input_length": (lambda info: info["limits"]["tokens"], Explained(512, "tokens in one text")),
    "max_batch_tokens": (lambda info: info["measured"]["token_budget"], Explained(1024, "tokens in one batch")),
    "max_batch_requests": (lambda _: None, Explained(None, "null: no limit")),
    "max_client_batch_size": (lambda info: info["limits"]["inputs"], Explained(2048, "inputs in one request")),
    "auto_truncate": (itemgetter("truncate"), False),
    "tokenization_workers": (itemgetter("workers"), 1),
    "version": (lambda info: info["versions"]["service"], Explained("0.1.0", "of the service")),
    "sha": (lambda _: None, None),
    "docker_label": (lambda _: None, None),
}
