"""The protocol's requests and responses: tensors as JSON, or as bytes after the JSON. Does not know the tasks."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from service.errors import Invalid, TooLarge
from service.http.dialects.spec import Content
from service.http.responses import Floats, json_bytes
from service.tasks.schemas import Body, EmbeddingFields, FailFastList

JSON_LENGTH = b"inference-header-content-length"  # header: bytes of the JSON at the start of a body with binary tensors
OCTETS = "application/octet-stream"
SIZE = struct.Struct("<I")  # before each element of a binary BYTES tensor
Value = Floats | Sequence[str]  # FP32, or BYTES [n]


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
    parameters: InputParameters = InputParameters()
    data: FailFastList[str] | FailFastList[FailFastList[str]] | None = Field(
        None, description="row by row, flat or nested", examples=[["my dog is hairy", "it rains"]]
    )


class OutputParameters(Body):
    binary_data: bool | None = Field(None, description="null: as binary_data_output says")


class RequestedOutput(Body):
    name: str = Field(examples=["embedding"])
    parameters: OutputParameters = OutputParameters()


class InferRequest(Body):
    id: str | None = None
    inputs: FailFastList[InputTensor]
    outputs: FailFastList[RequestedOutput] | None = Field(None, description="null: those of the model's own task")
    parameters: InferParameters = InferParameters()


class OutputTensor(BaseModel):
    name: str = Field(examples=["embedding"])
    datatype: str = Field(examples=["FP32"])
    shape: list[int] = Field(examples=[[1, 3]])
    data: list[float] | list[str] = Field([], description="absent where binary", examples=[[0.1, -0.2, 0.3]])
    parameters: dict[str, int] = Field({}, description="binary_data_size where the tensor is after the JSON")


class InferResponse(BaseModel):
    model_name: str = Field(examples=["sample"])
    model_version: str = Field(examples=["1"])
    id: str = Field("", description="of the request, if it has one")
    outputs: list[OutputTensor]


def attach_texts(request: InferRequest, content: bytes, max_inputs: int) -> InferRequest:
    """The request with the texts of its binary tensors in `data`; `content` has them.

    Raises Invalid, and TooLarge for more than `max_inputs` texts and as many of pairs.
    """
    inputs: list[InputTensor] = []
    at, left = 0, 2 * max_inputs
    for tensor in request.inputs:
        size = tensor.parameters.binary_data_size
        if size is not None:
            if at + size > len(content):
                message = f"{tensor.name}: binary_data_size is {size}; {len(content) - at} bytes are left of the body"
                raise Invalid(message, code="tensor")
            texts = _read_texts(tensor.name, memoryview(content)[at : at + size], left)
            tensor = tensor.model_copy(update={"data": texts})
            at, left = at + size, left - len(texts)
        inputs.append(tensor)
    if at != len(content):
        raise Invalid(f"the body has {len(content) - at} bytes after the last binary tensor", code="tensor")
    return request.model_copy(update={"inputs": inputs})


def read_texts(request: InferRequest, name: str) -> list[str] | None:
    """The texts of the input `name`; None without it. Raises Invalid for anything but BYTES of the stated shape."""
    tensor = next((one for one in request.inputs if one.name == name), None)
    if tensor is None:
        return None
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


async def build_response(name: str, version: str, request: InferRequest, outputs: Mapping[str, Value]) -> Any:
    """The tensors that the request names, all without names: a value for `json_bytes`, or Content with binary ones."""
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
            tensor["data"] = value if floats is None else orjson.Fragment(await _flat_json(floats))
        tensors.append(tensor)
    own = {"model_name": name, "model_version": version} | ({"id": request.id} if request.id else {})
    content = own | {"outputs": tensors}
    if not binary:
        return content
    head = orjson.dumps(content)
    return Content(b"".join([head, *binary]), OCTETS, ((JSON_LENGTH, b"%d" % len(head)),))


async def _flat_json(value: NDArray[np.generic]) -> bytes:
    """[n, d] as one JSON list, row by row."""
    return bytes(await json_bytes(value.reshape(-1)))


def _to_bytes(value: Value) -> bytes:
    if isinstance(value, np.ndarray):
        return value.astype("<f4").tobytes()
    return b"".join(SIZE.pack(len(text)) + text for text in (one.encode() for one in value))


def _read_texts(name: str, content: memoryview, most: int) -> list[str]:
    """The elements of a binary BYTES tensor. Raises Invalid, and TooLarge for more than `most`."""
    texts: list[str] = []
    at = 0
    while at < len(content):
        if len(texts) == most:
            raise TooLarge(f"{name} has more elements than a request has inputs (BERT_MAX_INPUTS): split it")
        end = at + SIZE.size + (SIZE.unpack_from(content, at)[0] if at + SIZE.size <= len(content) else 0)
        if end > len(content) or end < at + SIZE.size:
            message = f"{name}: element {len(texts)} ends after the tensor's {len(content)} bytes"
            raise Invalid(f"{message}; each element is its size, 4 bytes, little-endian, and its bytes", code="tensor")
        try:
            texts.append(str(content[at + SIZE.size : end], "utf-8"))
        except UnicodeDecodeError:
            raise Invalid(f"{name}: the text is not UTF-8", code="tensor", index=len(texts)) from None
        at = end
    return texts
