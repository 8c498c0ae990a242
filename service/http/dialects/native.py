"""The service's own task routes, those of text-embeddings-inference, and those of tokens."""

from collections.abc import Mapping
from typing import Any

from ...tasks import (
    answer,
    attention,
    choose,
    embed,
    fill_mask,
    inputs,
    pairs,
    predict,
    sparse,
    tag,
    tokens,
    vectors,
    zero_shot,
)
from ...tasks.defaults import ROOT_HEADS
from .spec import TaskSpec

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}  # of TEI, by our precision
TEI_ROUTES = {"/similarity": TaskSpec("similarity", embed.similarity, inputs.SimilarityResponse, of_tei=True)}
TOKEN_ROUTES = {
    "/tokenize": TaskSpec("tokenize", tokens.tokenize, tokens.TokenizeResponse),
    "/decode": TaskSpec("decode", tokens.decode, tokens.DecodeResponse),
    "/embed_all": TaskSpec("embed_all", vectors.embed_all, inputs.EmbedAllResponse, npy=True, of_tei=True),
    "/embed_sparse": TaskSpec("embed_sparse", sparse.embed_sparse, sparse.EmbedSparseResponse, of_tei=True),
}
ROUTES = {
    "/embed": TaskSpec("embed", vectors.embed_any, vectors.VectorsResponse, npy=True, of_tei=True),
    "/fill-mask": TaskSpec("fill_mask", fill_mask.fill_mask, fill_mask.FillMaskResponse, head=ROOT_HEADS["fill-mask"]),
    "/nsp": TaskSpec("nsp", pairs.nsp, inputs.NspResponse, head=ROOT_HEADS["nsp"]),
    "/predict": TaskSpec(
        "predict", zero_shot.predict_labels, predict.PredictResponse, of_tei=True, head=ROOT_HEADS["predict"]
    ),
    "/tag": TaskSpec("tag", tag.tag, tag.TagResponse, head=ROOT_HEADS["tag"]),
    "/answer": TaskSpec("answer", answer.answer, answer.AnswerResponse, head=ROOT_HEADS["answer"]),
    "/choose": TaskSpec("choose", choose.choose, choose.ChooseResponse, head=ROOT_HEADS["choose"]),
    "/attention": TaskSpec("attention", attention.attention, attention.AttentionResponse, npy=True, head="attention"),
}


def info_keys(info: Mapping[str, Any]) -> dict[str, Any]:
    """TEI's keys of /info with the values of ours; empty while `info` has only the fields of a worker that waits."""
    if "limits" not in info:
        return {}
    limits, measured = info["limits"], info["measured"]
    return {
        "model_id": info["model"],
        "model_sha": info["identity"]["revision"] or None,
        "model_dtype": DTYPES.get(info["precision"], info["precision"]),
        "served_model_name": info["model"],
        "model_type": _model_type(info),
        "max_concurrent_requests": limits["waiting_tokens"],
        "max_input_length": limits["tokens"],
        "max_batch_tokens": measured["token_budget"] if measured else limits["waiting_tokens"],
        "max_batch_requests": None,
        "max_client_batch_size": limits["inputs"],
        "auto_truncate": info["truncate"],
        "tokenization_workers": info["workers"],
        "version": info["versions"]["service"],
        "sha": None,
        "docker_label": None,
    }


def _model_type(info: Mapping[str, Any]) -> dict[str, Any]:
    """A classifier with a single label is a reranker, as in TEI. Of poolings, TEI's clients accept only these two."""
    if "labels" not in info["heads"]:
        steps = info["embedding"]["modules"] if info["pooling"] == "sentence" else [info["pooling"]]
        return {"embedding": {"pooling": "mean" if any("mean" in step for step in steps) else "cls"}}
    labels = info["labels"]
    names = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    numbers = {"label2id": {label: i for i, label in enumerate(labels)}}
    return {"reranker" if len(labels) == 1 else "classifier": names | numbers}
