"""What text-embeddings-inference has beside this service's own routes: /similarity and its keys in /info."""

from collections.abc import Mapping
from typing import Any

from service.http.dialects.spec import TaskSpec
from service.tasks import schemas
from service.tasks.vectors import similarity

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}  # of TEI, by our precision

ROUTES = {
    "/similarity": TaskSpec(
        "similarity",
        similarity.similarity,
        schemas.SimilarityRequest,
        schemas.SimilarityResponse,
        "The cosine of each sentence with the source sentence, in the format of text-embeddings-inference",
    ),
}


def info_keys(info: Mapping[str, Any]) -> dict[str, Any]:
    """TEI's keys of /info with the values of ours; none while `info` has only the fields of a worker that waits."""
    if "limits" not in info:
        return {}
    limits, measured = info["limits"], info["measured"]
    return {
        "model_id": info["model"],
        "model_sha": None,
        "model_dtype": DTYPES.get(info["precision"], info["precision"]),
        "served_model_name": info["model"],
        "model_type": _model_type(info),
        "max_concurrent_requests": limits["waiting_tokens"],
        "max_input_length": limits["tokens"],
        "max_batch_tokens": measured["token_budget"] if measured else limits["waiting_tokens"],
        "max_batch_requests": None,
        "max_client_batch_size": limits["inputs"],
        "auto_truncate": info["truncate"],
        "tokenization_workers": max(1, info["api_processes"]),
        "version": info["versions"]["service"],
        "sha": None,
        "docker_label": None,
    }


def _model_type(info: Mapping[str, Any]) -> dict[str, Any]:
    """A classifier of one label is a reranker, as in TEI."""
    if "labels" not in info["heads"]:
        return {"embedding": {"pooling": _pooling(info)}}
    numbered = enumerate(info["labels"])
    labels = {"id2label": {str(i): label for i, label in numbered}}
    labels["label2id"] = {label: i for i, label in enumerate(info["labels"])}
    return {"reranker" if len(info["labels"]) == 1 else "classifier": labels}


def _pooling(info: Mapping[str, Any]) -> str:
    """The nearest of TEI's names: its clients accept no others. Our own key says what it is."""
    if info["pooling"] == "sentence":
        return "mean" if any("mean" in module for module in info["embedding"]["modules"]) else "cls"
    return "mean" if info["pooling"] == "mean" else "cls"
