"""What FastAPI documents in /docs and /openapi.json: the task routes with their errors, and the response of /info."""

from typing import Annotated, Any, Literal

from fastapi import Depends, Header
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from starlette.routing import BaseRoute, Route

from ..settings import MAX_TIMEOUT_MS, RootTask
from ..tasks.inputs import ErrorBody, Status
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


class EmbeddingInfo(BaseModel):
    """How a text's vector is made where a request does not say it."""

    decided_by: str = Field(description="the artifact, or BERT_POOLING and BERT_NORMALIZE", examples=["the artifact"])
    dimensions: int = Field(examples=[384])
    modules: list[str] = Field(description="of sentence-transformers, after the encoder", examples=[["Pooling(mean)"]])
    left_out: list[str] = Field(description="modules that --without-modules left out at export")
    include_prompt: bool = Field(description="whether pooling reads the tokens of a prompt")


class InfoResponse(BaseModel):
    """The model, its limits and what runs it."""

    model: str
    models: list[str] = Field(description="the names of the service's models, the default first")
    digest: str = Field(description="names the artifact: 12 hexadecimal digits of its checksum")
    identity: dict[str, str | list[str]] = Field(
        {}, description="version, source, revision, license and languages of the model; empty where not stated"
    )
    status: str = Field(description="ready, or the reason why not, as in /ready")
    workers: int = Field(description="whole services behind the port")
    family: str = Field("", examples=["bert"])
    heads: list[str] = Field([], description="the outputs that this model has")
    missing_heads: dict[str, str] = Field({}, description="why an output is missing, by name")
    assumed: dict[str, str] = Field({}, description="what the export assumed, or read of one of several files, and why")
    pooling: str = Field("", description="default pooling of /embed and /v1/embeddings", examples=["mean"])
    normalize: bool = Field(False, description="default of /embed; /v1/embeddings gives unit length by default")
    default_prompt_name: str | None = Field(None, description="the prompt of a request that names none")
    prompts: dict[str, str] = Field({}, description="the checkpoint's prompts: the text before each text, by name")
    similarity_fn_name: str | None = Field(None, description="as the checkpoint states it", examples=["cosine"])
    embedding: EmbeddingInfo | None = None
    pair_labels: list[str] = Field([], description="the two labels of /nsp")
    labels: list[str] = Field([], description="the labels of /predict or the tags of /tag")
    label_scores: str = Field("", description="how /predict turns logits into scores", examples=["softmax"])
    rerank: Literal["cross-encoder", "maxsim", "cosine"] | None = Field(None, description="of /rerank; null: 501")
    root_task: RootTask | None = Field(None, description="task of `POST /` (BERT_ROOT_TASK); null: by heads and fields")
    sizes: dict[str, int] = Field({}, description="hidden, vocabulary, layers, ...")
    limits: dict[str, int | float] = Field({}, description="of a request, and of the queue")
    truncate: bool = Field(False, description="whether long inputs are cut by default (BERT_TRUNCATE)")
    special_tokens: bool = Field(
        False, description="whether all special tokens in a text are read as such by default (BERT_SPECIAL_TOKENS)"
    )
    mask_token: str | None = Field(None, description="null while the model is loading; empty without one")
    precision: str = Field("", examples=["int8"])
    device: str = Field("", description="the device that the artifact was exported for")
    execution_provider: str | None = Field(None, description="CPU, CUDA or OpenVINO; null while the model is loading")
    cuda_attention: Literal["packed", "plain"] | None = Field(
        None, description="attention on the GPU: in one operator, or in standard operators; null on the CPU"
    )
    degraded: str | None = Field(None, description=DEGRADED)
    threads: int | None = None
    in_memory: bool = Field(True, description="false where the model was put out of memory (BERT_MEMORY_LIMIT)")
    memory_bytes: int | None = Field(None, description="what the model takes there; null while it is loading")
    measured: dict[str, Any] | None = Field(None, description="batch size, speed and accuracy, measured at start")
    verification: dict[str, Any] = Field({}, description="the exporter's comparison with its reference")
    versions: dict[str, str] = Field(
        {}, description="of the exporter, the service, ONNX Runtime, and OpenVINO where it runs the encoder"
    )
    model_id: str = Field("", description="as text-embeddings-inference, like all keys from here on: the model")
    model_sha: str | None = None
    model_dtype: str = Field("", examples=["float32"])
    served_model_name: str = ""
    model_type: dict[str, dict[str, Any]] = Field(
        {},
        description="embedding with its pooling; classifier, or reranker if it has one label, with id2label, label2id",
        examples=[{"embedding": {"pooling": "mean"}}],
    )
    max_concurrent_requests: int = Field(0, description="requests of one token that the queue takes")
    max_input_length: int = Field(0, description="tokens in one text")
    max_batch_tokens: int = Field(0, description="tokens in one batch")
    max_batch_requests: int | None = Field(None, description="null: no limit")
    max_client_batch_size: int = Field(0, description="inputs in one request")
    auto_truncate: bool = False
    tokenization_workers: int = 0
    version: str = Field("", description="of the service")
    sha: str | None = None
    docker_label: str | None = None
