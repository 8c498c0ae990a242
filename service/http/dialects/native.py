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
TEI_ROUTES = {
    "/similarity": TaskSpec(
        "similarity",
        embed.similarity,
        inputs.SimilarityRequest,
        inputs.SimilarityResponse,
        "The similarity of each sentence to the source sentence, in the format of text-embeddings-inference",
        of_tei=True,
    ),
}
TOKEN_ROUTES = {
    "/tokenize": TaskSpec(
        "tokenize",
        tokens.tokenize,
        tokens.TokenizeRequest,
        tokens.TokenizeResponse,
        "The tokens of a text or pair of any length, or their number, in the format of text-embeddings-inference",
    ),
    "/decode": TaskSpec(
        "decode",
        tokens.decode,
        tokens.DecodeRequest,
        tokens.DecodeResponse,
        "The texts of token ids, in the format of text-embeddings-inference",
    ),
    "/embed_all": TaskSpec(
        "embed_all",
        vectors.embed_all,
        vectors.EmbedAllRequest,
        inputs.EmbedAllResponse,
        "A vector per token of each text, the last layer's hidden states, in the format of text-embeddings-inference",
        npy=True,
        of_tei=True,
    ),
    "/embed_sparse": TaskSpec(
        "embed_sparse",
        sparse.embed_sparse,
        sparse.EmbedSparseRequest,
        sparse.EmbedSparseResponse,
        "Weights of words for checkpoints trained for sparse vectors (SPLADE), as text-embeddings-inference has them",
        of_tei=True,
    ),
}
ROUTES = {
    "/embed": TaskSpec(
        "embed",
        vectors.embed_any,
        inputs.EmbedRequest,
        vectors.VectorsResponse,
        "One vector per text, always as a list of lists, by default as the checkpoint says, else the state of [CLS]; "
        "or with pooling none one per token",
        npy=True,
        of_tei=True,
    ),
    "/fill-mask": TaskSpec(
        "fill_mask",
        fill_mask.fill_mask,
        fill_mask.FillMaskRequest,
        fill_mask.FillMaskResponse,
        "Candidates for masked words, in the format of transformers' FillMaskPipeline",
        head=ROOT_HEADS["fill-mask"],
    ),
    "/nsp": TaskSpec(
        "nsp",
        pairs.nsp,
        inputs.NspRequest,
        inputs.NspResponse,
        "Whether the second text follows the first",
        head=ROOT_HEADS["nsp"],
    ),
    "/predict": TaskSpec(
        "predict",
        zero_shot.predict_labels,
        predict.PredictRequest,
        predict.PredictResponse,
        "A classifier's labels for a text or a pair, in the format of text-embeddings-inference; or with "
        "candidate_labels those of the request, as transformers' zero-shot-classification pipeline gives them",
        head=ROOT_HEADS["predict"],
        of_tei=True,
    ),
    "/tag": TaskSpec(
        "tag",
        tag.tag,
        tag.TagRequest,
        tag.TagResponse,
        "A classifier's tags for the tokens of a text, in the format of transformers' TokenClassificationPipeline",
        head=ROOT_HEADS["tag"],
    ),
    "/answer": TaskSpec(
        "answer",
        answer.answer,
        answer.AnswerRequest,
        answer.AnswerResponse,
        "The parts of a context of any length that answer a question, in the format of transformers' "
        "QuestionAnsweringPipeline",
        head=ROOT_HEADS["answer"],
    ),
    "/choose": TaskSpec(
        "choose",
        choose.choose,
        choose.ChooseRequest,
        choose.ChooseResponse,
        "The choices of a prompt by their probability, from a multiple-choice head",
        head=ROOT_HEADS["choose"],
    ),
    "/attention": TaskSpec(
        "attention",
        attention.attention,
        attention.AttentionRequest,
        attention.AttentionResponse,
        "How much each token of a text or pair attends to each other, by layer and head",
        npy=True,
        head="attention",
    ),
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
    """A classifier with a single label is a reranker, as in TEI."""
    if "labels" not in info["heads"]:
        return {"embedding": {"pooling": _pooling(info)}}
    labels = info["labels"]
    by_number = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    by_label = {"label2id": {label: i for i, label in enumerate(labels)}}
    return {"reranker" if len(labels) == 1 else "classifier": by_number | by_label}


def _pooling(info: Mapping[str, Any]) -> str:
    """The nearest of TEI's names: its clients accept no others. Our own key says what it is."""
    if info["pooling"] == "sentence":
        return "mean" if any("mean" in module for module in info["embedding"]["modules"]) else "cls"
    return "mean" if info["pooling"] == "mean" else "cls"
