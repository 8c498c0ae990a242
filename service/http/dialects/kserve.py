"""The Open Inference Protocol (KServe, Triton): tensors and routes."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Response
from pydantic import BeforeValidator, Field

from ...artifact import Manifest
from ...errors import Invalid, TooLarge
from ...models import ServedModel
from ...tasks.defaults import embedding_defaults
from ...tasks.embed import embed_texts
from ...tasks.flow import Task, TaskResult, Tasks
from ...tasks.inputs import Body, EmbeddingFields, FailFastList
from ...tasks.pairs import score_labels
from ...tokenization.encoding import Text
from ...turns import DEADLINE, Deadline
from ..responses import Floats, json_bytes, json_response
from .spec import Content, Explained, TaskSpec, like

JSON_LENGTH = b"inference-header-content-length"  # header: bytes of the JSON at the start of a body with binary tensors
OCTETS = "application/octet-stream"
SIZE = struct.Struct("<I")  # before each element of a binary BYTES tensor
VERSION = "1"  # clients of the protocol ask for a version; an artifact has none
VECTORS = ("embedding",)
LABELS = ("scores", "label")
Value = Floats | Sequence[str]  # FP32, or BYTES [n]
NULL_IS_EMPTY = BeforeValidator(lambda parameters: {} if parameters is None else parameters)
OUTPUT = like(
    "OutputTensor",
    name="embedding",
    datatype="FP32",
    shape=[1, 3],
    data=Explained(([0.1, -0.2, 0.3], ["positive"]), "absent where binary", absent=True),
    parameters=Explained({"binary_data_size": 12}, "binary_data_size where the tensor is after the JSON", absent=True),
)
INFER_RESPONSE = like(
    "InferResponse",
    model_name="sample",
    model_version="1",
    id=Explained("1", "of the request, if it has one", absent=True),
    outputs=[OUTPUT],
)
SERVER = like("ServerMetadata", name="packbert", version="0.1.0", extensions=["binary_tensor_data"])
LIVE, READY = like("Live", live=True), like("Ready", ready=True)
MODEL_READY = like("ModelReady", name="sample", ready=True)
TENSOR = like("TensorMetadata", name="text", datatype="BYTES", shape=Explained([-1], "-1: any size"))
MODEL = like(
    "ModelMetadata",
    name="sample",
    versions=["1"],
    platform="onnxruntime",
    inputs=Explained([TENSOR], "a classifier of texts also takes `text_pair`"),
    outputs=[TENSOR],
)


class InferParameters(EmbeddingFields):
    """The fields of /embed, and the protocol's own. Without `binary_data_output`, outputs are JSON."""

    binary_data_output: bool = False
    raw_scores: bool = Field(False, description="of a classifier: logits instead of probabilities")
    timeout: int | None = Field(None, ge=0, description="deadline in microseconds; 0: none")
    priority: int | None = Field(None, description="accepted for clients of Triton; has no effect")


class InputParameters(Body):
    binary_data_size: int | None = Field(None, ge=0, description="bytes of this tensor after the JSON")
    content_type: str | None = Field(None, description="accepted for clients of MLServer; has no effect")


class InputTensor(Body):
    name: str = Field(examples=["text"])
    shape: list[int] = Field(examples=[[2]])
    datatype: str = Field(examples=["BYTES"])
    parameters: Annotated[InputParameters, NULL_IS_EMPTY] = InputParameters()
    data: FailFastList[str] | FailFastList[FailFastList[str]] | None = Field(
        None, description="row by row, flat or nested", examples=[["my dog is hairy", "it rains"]]
    )


class OutputParameters(Body):
    binary_data: bool | None = Field(None, description="null: as binary_data_output says")


class RequestedOutput(Body):
    name: str = Field(examples=["embedding"])
    parameters: Annotated[OutputParameters, NULL_IS_EMPTY] = OutputParameters()


class InferRequest(Body):
    id: str | None = None
    inputs: FailFastList[InputTensor]
    outputs: FailFastList[RequestedOutput] | None = Field(None, description="null: those of the model's own task")
    parameters: Annotated[InferParameters, NULL_IS_EMPTY] = InferParameters()
    model_name: str | None = Field(None, description="of KServe's client: the path names the model; has no effect")


async def _infer(tasks: Tasks, request: InferRequest) -> Task:
    """Inference on texts by KServe's Open Inference Protocol; binary tensors as in Triton."""
    parameters, manifest = request.parameters, tasks.manifest
    names = _find_outputs(manifest, request)
    texts = _find_inputs(request)
    if parameters.timeout and parameters.timeout < 1e6 * DEADLINE.get().seconds_left:
        DEADLINE.set(Deadline(parameters.timeout / 1e6))
    if names == VECTORS:
        if parameters.raw_scores:
            raise Invalid("raw_scores applies to scores and label, not to embedding: leave it out", code="raw_scores")
        plain = [text for text in texts if isinstance(text, str)]
        if len(plain) < len(texts):
            raise Invalid("text_pair is an input of scores and label, not of embedding: leave it out", code="tensor")
        task = await embed_texts(tasks, plain, parameters)
    else:
        parameters.refuse_vector_fields()
        task = await score_labels(tasks, texts, parameters, raw=parameters.raw_scores)

    async def answer(result: TaskResult) -> Any:
        value: Floats = await task.answer(result)
        outputs: dict[str, Value] = {"embedding": value}
        if names == LABELS:
            best = [manifest.labels[i] for i in value.argmax(axis=-1).tolist()]
            outputs = {"scores": value.astype("<f4"), "label": best}
        return await _build_response(manifest.name, request, outputs)

    return task._replace(answer=answer)


def _find_outputs(manifest: Manifest, request: InferRequest) -> tuple[str, ...]:
    """VECTORS or LABELS. Raises Invalid for an output that the model does not have, or for outputs of both."""
    known = (*VECTORS, *LABELS) if "labels" in manifest.heads else VECTORS
    asked = {one.name for one in request.outputs or ()} or {known[-1]}  # by default those of the classifier, if any
    if unknown := sorted(asked.difference(known)):
        raise Invalid(f"this model has no output {unknown[0]!r}; it has {', '.join(known)}", code="tensor")
    if asked.isdisjoint(VECTORS):
        return LABELS
    if asked.isdisjoint(LABELS):
        return VECTORS
    raise Invalid("embedding and a classifier's outputs are two tasks: send a request for each", code="tensor")


def _find_inputs(request: InferRequest) -> list[Text]:
    """The texts, or the pairs with `text_pair`. Raises Invalid for other inputs."""
    tensors = {one.name: one for one in request.inputs}
    rows = [_read_texts(name, tensors[name]) for name in ("text", "text_pair") if name in tensors]
    names = [one.name for one in request.inputs]
    if sorted(names) not in (["text"], ["text", "text_pair"]):
        given = ", ".join(names) or "none"
        raise Invalid(f"the inputs are {given}; this model takes text, and text_pair for pairs", code="tensor")
    if len(rows) == 1:
        return [*rows[0]]
    texts, seconds = rows
    if len(seconds) != len(texts):
        raise Invalid(f"text has {len(texts)} rows and text_pair {len(seconds)}: send as many", code="tensor")
    return list(zip(texts, seconds, strict=True))


def _read_texts(name: str, tensor: InputTensor) -> list[str]:
    """Raises Invalid for anything but BYTES of the stated shape."""
    if tensor.datatype != "BYTES":
        raise Invalid(f"{name} has the datatype {tensor.datatype}; this model takes texts, BYTES", code="tensor")
    if tensor.data is None:
        raise Invalid(f"{name} has neither data nor binary_data_size; shared memory is not supported", code="tensor")
    texts = [text for row in tensor.data for text in ([row] if isinstance(row, str) else row)]
    shape = tensor.shape
    if shape != [len(texts)] and shape != [len(texts), 1]:
        message = f"{name} has the shape {shape[:3]} and {len(texts)} texts; send one text a row, [{len(texts)}]"
        raise Invalid(message, code="tensor")
    return texts


def _attach_texts(request: InferRequest, content: bytes, max_inputs: int) -> InferRequest:
    """The request with the texts of its binary tensors in `data`; `content` has them.

    Raises Invalid, and TooLarge for more than `max_inputs` texts and as many of pairs.
    """
    inputs, rest, left = list[InputTensor](), memoryview(content), 2 * max_inputs
    for tensor in request.inputs:
        size = tensor.parameters.binary_data_size
        if size is not None:
            if size > len(rest):
                message = f"{tensor.name}: binary_data_size is {size}; {len(rest)} bytes are left of the body"
                raise Invalid(message, code="tensor")
            texts = _decode_texts(tensor.name, rest[:size], left)
            tensor = tensor.model_copy(update={"data": texts})
            rest, left = rest[size:], left - len(texts)
        inputs.append(tensor)
    if rest:
        raise Invalid(f"the body has {len(rest)} bytes after the last binary tensor", code="tensor")
    return request.model_copy(update={"inputs": inputs})


def _decode_texts(name: str, content: memoryview, most: int) -> list[str]:
    """The elements of a binary BYTES tensor. Raises Invalid, and TooLarge for more than `most`."""
    texts, rest = list[str](), content
    while rest:
        if len(texts) == most:
            raise TooLarge(f"{name} has more elements than a request has inputs (BERT_MAX_INPUTS): split it")
        end = SIZE.size + (SIZE.unpack_from(rest)[0] if len(rest) >= SIZE.size else 0)
        if end > len(rest):
            message = f"{name}: element {len(texts)} ends after the tensor's {len(content)} bytes"
            raise Invalid(f"{message}; each element is its size, 4 bytes, little-endian, and its bytes", code="tensor")
        try:
            texts.append(str(rest[SIZE.size : end], "utf-8"))
        except UnicodeDecodeError:
            raise Invalid(f"{name}: the text is not UTF-8", code="tensor", index=len(texts)) from None
        rest = rest[end:]
    return texts


async def _build_response(name: str, request: InferRequest, outputs: Mapping[str, Value]) -> Any:
    """The tensors that the request names, or all: a value for `json_bytes`, or Content if a tensor is binary."""
    by_default = request.parameters.binary_data_output
    asked = {one.name: one.parameters.binary_data for one in request.outputs or ()} or dict.fromkeys(outputs)
    tensors, binary = [], []
    for output, as_binary in asked.items():
        value = outputs[output]
        floats = value if isinstance(value, np.ndarray) else None
        shape, datatype = ([len(value)], "BYTES") if floats is None else (list(floats.shape), "FP32")
        tensor: dict[str, Any] = {"name": output, "datatype": datatype, "shape": shape}
        if by_default if as_binary is None else as_binary:
            binary.append(_to_bytes(value))
            tensor["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            tensor["data"] = value if floats is None else orjson.Fragment(bytes(await json_bytes(floats.reshape(-1))))
        tensors.append(tensor)
    own = {"model_name": name, "model_version": VERSION} | ({"id": request.id} if request.id else {})
    content = own | {"outputs": tensors}
    if not binary:
        return content
    head = orjson.dumps(content)
    return Content(b"".join([head, *binary]), OCTETS, ((JSON_LENGTH, b"%d" % len(head)),))


def _to_bytes(value: Value) -> bytes:
    if isinstance(value, np.ndarray):
        return value.astype("<f4").tobytes()
    return b"".join(SIZE.pack(len(text)) + text for text in (one.encode() for one in value))


def task_routes(model: ServedModel) -> dict[str, TaskSpec]:
    """The routes under the model's name: another name is a 404."""
    path = f"/v2/models/{model.artifact.manifest.name}"
    versioned = replace(INFER, operation="infer_by_version")
    return {f"{path}/infer": INFER, f"{path}/versions/{VERSION}/infer": versioned}


def add_server_routes(router: APIRouter, model: ServedModel) -> None:
    @router.get("/v2", response_model=SERVER, summary="Name, version and extensions of this server")
    async def server_metadata() -> Response:
        return json_response({"name": "packbert", "version": version("packbert"), "extensions": ["binary_tensor_data"]})

    @router.get("/v2/health/live", response_model=LIVE, summary="The process responds, as /health")
    async def server_live() -> Response:
        return json_response({"live": True})

    @router.get("/v2/health/ready", response_model=READY, summary="The model is ready, as /ready")
    async def server_ready() -> Response:
        return _ready({}, model.ready())


def add_get_routes(router: APIRouter, model: ServedModel) -> None:
    name = model.artifact.manifest.name
    for suffix, of_version in (("", ""), (f"/versions/{VERSION}", "_by_version")):
        path = f"/v2/models/{name}{suffix}"

        @router.get(path, response_model=MODEL, name=f"model_metadata{of_version}", summary="Inputs and outputs")
        async def model_metadata() -> Response:
            return json_response(_describe_model(model))

        @router.get(f"{path}/ready", response_model=MODEL_READY, name=f"model_ready{of_version}", summary="As /ready")
        async def model_ready() -> Response:
            return _ready({"name": name}, model.ready())


def _describe_model(model: ServedModel) -> dict[str, Any]:
    manifest = model.artifact.manifest
    defaults = embedding_defaults(manifest, model.settings)
    width = defaults.kept_dimensions or int(manifest.outputs[defaults.pooling].shape[-1])
    inputs, outputs = [_tensor("text", "BYTES")], [_tensor("embedding", "FP32", width)]
    if "labels" in manifest.heads:
        inputs.append(_tensor("text_pair", "BYTES"))
        outputs += [_tensor("scores", "FP32", len(manifest.labels)), _tensor("label", "BYTES")]
    own = {"name": manifest.name, "versions": [VERSION], "platform": "onnxruntime"}
    return own | {"inputs": inputs, "outputs": outputs}


def _tensor(name: str, datatype: str, *sizes: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [-1, *sizes]}


def _ready(content: Mapping[str, Any], reason: str) -> Response:
    return json_response({**content, "ready": not reason}, 503 if reason else 200)


INFER = TaskSpec("infer", _infer, INFER_RESPONSE, binary_header=JSON_LENGTH, attach=_attach_texts)
