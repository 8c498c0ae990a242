"""What is compared of an answer: its exact form on one machine, its rounded form on all, and how two forms differ."""

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.contract.request import Request

TOLERANCE = 1e-4  # absolute and relative: float32 on AVX2, AVX512 and AMX differs by a tenth of it
DIGITS = 6  # that answers.jsonl has of a float
MASKS = (  # what differs from one answer to the next, in the same number of bytes
    (re.compile(rb'"created":\d+'), b'"created":0'),
    (re.compile(rb'"id":"(rerank|score|classify|pooling|embed)-[0-9a-f]{16}"'), rb'"id":"\1-*"'),
    (re.compile(rb'"total_duration":[0-9]+'), b'"total_duration":0'),
    (re.compile(rb'"request_id":"[0-9a-f]{16}"'), b'"request_id":"*"'),
    (re.compile(rb"dur=[0-9.]+"), b"dur=*"),
    (re.compile(rb"(x-request-id: )[0-9a-f]{16}\r"), rb"\1*\r"),
    (re.compile(rb"(\ndate: )\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r"), rb"\1*\r"),
)
OF_THE_SERVER = (  # headers that the process adds to what the application says, and times of text-embeddings-inference
    *("date", "server", "x-compute-type", "x-compute-time", "x-compute-tokens"),
    *("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"),
)
SIZES = ("content-length", "inference-header-content-length", "etag")  # differ where a float has a digit more
SERIES = re.compile(r"([a-z_:A-Z0-9]+)(?:\{(.*)\})? ")
LABEL = re.compile(r'(le="[^"]*"|\w+)(?:="(?:[^"\\]|\\.)*")?')  # its name; the whole bound of a bucket
Form = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int  # 0 of a raw request
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


def exact(request: Request, answer: Answer) -> Form:
    """The form that is the same for each answer of a version on one machine, with every byte that does not vary."""
    names: dict[str, Callable[[bytes], Any]] = {"keys": _keys, "series": _series}
    if request.compared in names and answer.body:
        body: Any = names[request.compared](answer.body)
    else:
        body = _mask(answer.body)
        body = body.decode() if _is_utf8(body) else base64.b64encode(body).decode()
    left_out = SIZES if request.compared in names else ()
    return {"status": answer.status, "headers": _headers(answer, left_out), "body": body}


def rounded(request: Request, answer: Answer) -> Form:
    """The form in answers.jsonl: floats have a few digits; what depends on their number of digits is left out."""
    form: Form = {"status": answer.status, "headers": _headers(answer, SIZES)}
    if request.method != "HEAD" and (size := answer.header("content-length")):
        assert int(size) == len(answer.body), f"content-length {size} of a body of {len(answer.body)} bytes"
    if answer.body:
        form |= _content(request, answer)
    return form


def _content(request: Request, answer: Answer) -> Form:
    """The body in its rounded form, under the name of its kind."""
    body, media_type = answer.body, answer.header("content-type")
    by_comparison: dict[str, Callable[[bytes], Any]] = {"keys": _keys, "series": _series, "document": _outline}
    if request.compared == "type":
        return {}
    if request.compared in by_comparison:
        return {request.compared: by_comparison[request.compared](body)}
    if request.raw is not None:
        return {"bytes": _mask(body).decode()}
    if media_type == "application/x-npy":
        return {"npy": _array(np.load(io.BytesIO(body)))}
    if size := answer.header("inference-header-content-length"):
        return _tensors(body, int(size))
    if media_type == "application/json":
        return {"json": _round(json.loads(_mask(body)))}
    return {"text": body.decode()}


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Each place where two forms differ, in words; floats may differ by TOLERANCE."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _differences_of_objects(old, new, where)
    elif isinstance(old, list) and isinstance(new, list):
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, f"{where}[{index}]")
        if len(old) != len(new):
            more = "; ".join(_short(one) for one in (old if len(old) > len(new) else new)[min(len(old), len(new)) :])
            yield f"{where}: had {len(old)} items, has {len(new)}: {more}"
    elif isinstance(old, float) and isinstance(new, float) and np.isclose(new, old, rtol=TOLERANCE, atol=TOLERANCE):
        return
    elif type(old) is not type(new) or old != new:
        yield f"{where}: was {_short(old)}\n{' ' * (len(where) + 3)}is {_short(new)}"


def _differences_of_objects(old: Form, new: Form, where: str) -> Iterator[str]:
    for key in [*old, *(key for key in new if key not in old)]:
        place = f"{where}.{key}" if where else key
        if key not in new:
            yield f"{place}: was {_short(old[key])}, is missing"
        elif key not in old:
            yield f"{place}: is new, {_short(new[key])}"
        else:
            yield from differences(old[key], new[key], place)
    if old.keys() == new.keys() and list(old) != list(new):
        yield f"{where}: the order was {list(old)}, is {list(new)}"


def _headers(answer: Answer, left_out: Sequence[str]) -> list[str]:
    lines = (f"{name}: {value}\r" for name, value in answer.headers if name not in (*OF_THE_SERVER, *left_out))
    return [_mask(line.encode()).decode().removesuffix("\r") for line in lines]


def _mask(content: bytes) -> bytes:
    for pattern, replacement in MASKS:
        content = pattern.sub(replacement, content)
    return content


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _short(value: Any, most: int = 400) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _round(value: Any, key: str = "") -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _round(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_round(one) for one in value]
    if isinstance(value, str) and key in ("embedding", "data"):
        return {"base64": _array(np.frombuffer(base64.b64decode(value), "<f4"))}
    return value


def _array(array: np.ndarray) -> Form:
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": _round(array.ravel().tolist())}


def _tensors(body: bytes, size: int) -> Form:
    """The JSON of KServe's binary answer, and its tensors."""
    head = json.loads(_mask(body[:size]))
    tensors: list[Any] = []
    for output in head["outputs"]:
        if length := output.get("parameters", {}).get("binary_data_size"):
            content, size = body[size : size + length], size + length
            as_floats = output["datatype"] == "FP32"
            tensors.append(_array(np.frombuffer(content, "<f4")) if as_floats else content.decode())
    assert size == len(body)
    return {"json": _round(head), "tensors": tensors}


def _keys(body: bytes) -> Any:
    def outline(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: outline(one) for name, one in value.items()}
        return [outline(one) for one in value[:1]] if isinstance(value, list) else type(value).__name__

    return outline(json.loads(body))


def _series(body: bytes) -> list[str]:
    """The metrics: their types, the names of each one's labels, and the bounds of a histogram's buckets."""
    found = set()
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            found.add(line.removeprefix("# "))
        elif series := SERIES.match(line):
            found.add(f"{series[1]} {','.join(LABEL.findall(series[2] or ''))}".rstrip())
    return sorted(found)


def _outline(body: bytes) -> Form:
    """The operations and schemas of an OpenAPI document; a field that may be absent has a question mark, or its
    default."""
    document = json.loads(body)
    operations = {
        f"{method} {path}": [operation.get("operationId"), *sorted(operation["responses"])]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    schemas = {name: _fields(schema) for name, schema in sorted(document["components"]["schemas"].items())}
    return {"operations": operations, "schemas": schemas}


def _fields(schema: Form) -> str:
    def show(name: str, field: Form) -> str:
        if name in schema.get("required", ()):
            return name
        return f"{name}={json.dumps(field['default'])}" if "default" in field else f"{name}?"

    return " ".join(show(*field) for field in sorted(schema.get("properties", {}).items()))
