"""What FastAPI documents in /docs and /openapi.json: the task routes with their errors, and the response of /info."""

from typing import Annotated, Any, Literal

from fastapi import Depends, Header
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import Field
from starlette.routing import BaseRoute, Route

from ..settings import MAX_TIMEOUT_MS, RootTask
from ..tasks.inputs import ErrorBody, Status
from .dialects import native
from .dialects.spec import Explained, like
from .endpoint import TaskEndpoint
from .responses import NPY

Responses = dict[int | str, dict[str, Any]]  # FastAPI's type of `responses=`
TASK_ERRORS = {
    400: "The body is not JSON in UTF-8",
    401: "The server requires a key (BERT_API_KEY, BERT_API_KEY_FILE), and it is missing or wrong",
    404: "There is no such path, or no model of this name",
    413: "The body, the number of inputs or the size of the response exceeds the limit",
    415: "The body has a content-encoding other than gzip",
    422: "Unknown or missing fields, wrong types, an empty input, no mask, or too long without truncation",
    429: "The queue is full: retry after the seconds in Retry-After. Nothing of the request was computed",
    500: "The model failed on this input, or its output was not finite",
    501: "This model does not have the head that the task needs",
    503: "The model is loading, the server is shutting down, the deadline passed before the model ran, or the last "
    "self-check found wrong answers",
}
PROTOCOL_ERRORS: Responses = {  # sent before the path is known
    408: {"model": ErrorBody, "description": "The request did not arrive in time; the connection closes"},
    431: {"model": ErrorBody, "description": "The request line and headers are too large; the connection closes"},
}
NPY_CONTENT: Responses = {200: {"content": {NPY: {"schema": {"type": "string", "format": "binary"}}}}}
DEGRADED = "why the CPU is used although there is an artifact for CUDA"
GROUPS = {  # the task's name in the metrics -> its group in /docs
    **dict.fromkeys(("embed", "embeddings", "embed_all", "embed_sparse", "pooling", "similarity"), "vectors"),
    "fill_mask": "masks",
    **dict.fromkeys(("nsp", "rerank", "score"), "pairs"),
    **dict.fromkeys(("predict", "classify", "tag"), "labels"),
    **dict.fromkeys(("answer", "choose"), "questions"),
    **dict.fromkeys(("tokenize", "decode", "attention"), "tokens"),
}
OTHER_GROUP, SERVICE = "other forms", "service"
API_KEY = Depends(HTTPBearer(scheme_name="key", auto_error=False, description="a key of BERT_API_KEY or its file"))
Timeout = Annotated[
    int | None, Header(ge=1, le=MAX_TIMEOUT_MS, description="deadline in milliseconds; default: BERT_TIMEOUT_MS")
]


EMBEDDING_INFO = like(
    "EmbeddingInfo",
    "How a text's vector is made where a request does not say it.",
    decided_by=Explained("the artifact", "the artifact, or BERT_POOLING and BERT_NORMALIZE"),
    dimensions=384,
    modules=Explained(["Pooling(mean)"], "of sentence-transformers, after the encoder"),
    left_out=Explained(list[str], "modules that --without-modules left out at export"),
    include_prompt=Explained(bool, "whether pooling reads the tokens of a prompt"),
)
INFO_RESPONSE = like(
    "InfoResponse",
    "The model, its limits and what runs it.",
    model="sample",
    models=Explained(["sample"], "the names of the service's models, the default first"),
    digest=Explained("5f2c0f9e1d3a", "names the artifact: 12 hexadecimal digits of its checksum"),
    identity=Explained(
        dict[str, str | list[str]],
        "version, source, revision, license and languages of the model; empty where not stated",
    ),
    status=Explained("ready", "ready, or the reason why not, as in /ready"),
    workers=Explained(1, "whole services behind the port"),
    family="bert",
    heads=Explained(["cls", "mean"], "the outputs that this model has"),
    missing_heads=Explained(dict[str, str], "why an output is missing, by name"),
    assumed=Explained(dict[str, str], "what the export assumed, or read of one of several files, and why"),
    pooling=Explained("mean", "default pooling of /embed and /v1/embeddings"),
    normalize=Explained(bool, "default of /embed; /v1/embeddings gives unit length by default"),
    default_prompt_name=Explained((str, None), "the prompt of a request that names none"),
    prompts=Explained(dict[str, str], "the checkpoint's prompts: the text before each text, by name"),
    similarity_fn_name=Explained(("cosine", None), "as the checkpoint states it"),
    embedding=EMBEDDING_INFO,
    pair_labels=Explained(list[str], "the two labels of /nsp"),
    labels=Explained(list[str], "the labels of /predict or the tags of /tag"),
    label_scores=Explained("softmax", "how /predict turns logits into scores"),
    rerank=Explained((Literal["cross-encoder", "maxsim", "cosine"], None), "of /rerank; null: 501"),
    root_task=Explained((RootTask, None), "task of `POST /` (BERT_ROOT_TASK); null: by heads and fields"),
    sizes=Explained(dict[str, int], "hidden, vocabulary, layers, ..."),
    limits=Explained(dict[str, int], "of a request, and of the queue"),
    truncate=Explained(bool, "whether long inputs are cut by default (BERT_TRUNCATE)"),
    special_tokens=Explained(
        bool, "whether all special tokens in a text are read as such by default (BERT_SPECIAL_TOKENS)"
    ),
    mask_token=Explained("[MASK]", "empty without one"),
    precision="int8",
    device=Explained("cpu", "the device that the artifact was exported for"),
    execution_provider=Explained("CPU", "CPU, CUDA or OpenVINO"),
    cuda_attention=Explained(
        (Literal["packed", "plain"], None),
        "attention on the GPU: in one operator, or in standard operators; null on the CPU",
    ),
    degraded=Explained((str, None), DEGRADED),
    threads=2,
    in_memory=Explained(bool, "false where the model was put out of memory (BERT_MEMORY_LIMIT)"),
    memory_bytes=Explained(36_000_000, "what the model takes there"),
    measured=Explained(dict[str, Any], "batch size, speed and accuracy, measured at start"),
    verification=Explained(dict[str, Any], "the exporter's comparison with its reference"),
    versions=Explained(
        dict[str, str], "of the exporter, the service, ONNX Runtime, and OpenVINO where it runs the encoder"
    ),
    **{key: example for key, (_, example) in native.INFO.items()},
)


class Readiness(Status):
    degraded: str | None = Field(None, description=f"{DEGRADED}; absent where that is not so")
    models: dict[str, str] | None = Field(None, description="the status of each of several models, by name")


def documented(route: BaseRoute) -> BaseRoute:
    """The route as FastAPI documents it. A task's route receives no request so: all go to the TaskEndpoint."""
    if not isinstance(route, Route) or not isinstance(endpoint := route.endpoint, TaskEndpoint):
        return route
    spec = endpoint.spec
    model = spec.error_shape.model
    errors: Responses = {status: {"model": model, "description": text} for status, text in TASK_ERRORS.items()}

    def declaration(body: Any, x_request_timeout_ms: Timeout = None) -> None: ...

    declaration.__annotations__["body"] = spec.request_model
    return APIRoute(
        route.path,
        declaration,
        methods=["POST"],
        name=spec.operation or spec.name,
        operation_id=spec.operation or spec.name,
        summary=spec.summary,
        tags=[GROUPS.get(spec.name, OTHER_GROUP)],
        response_model=spec.response_model,
        responses=PROTOCOL_ERRORS | errors | (NPY_CONTENT if spec.npy else {}),
        dependencies=[API_KEY] if endpoint.keys.required else [],
    )
