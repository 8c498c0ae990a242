"""One request of the contract, and how lists of them are written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

ID = "contract"  # of every request that sends no other x-request-id
NPY = {"accept": "application/x-npy"}
Row = tuple[Any, ...]  # label, body (JSON; bytes or a str as they are; None for none), and headers if there are any

# What of a body is compared. whole: every value. keys: the names, and the types of their values. series: names and
# labels of metrics. document: of OpenAPI, on other versions of FastAPI too, its operations and schemas. type: only its
# media type. `compare` takes keys and series so too, and everything else byte for byte.
Compared = Literal["whole", "keys", "series", "document", "type"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    label: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    compared: Compared = "whole"
    admin: bool = False  # sent to BERT_ADMIN_PORT
    raw: bytes | None = None  # sent as it is; all bytes that come back until the connection closes are the answer
    answer_of: str = ""  # the name of another request, whose recorded answer is also that of this one

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.method, self.path, self.label) if part)

    def with_headers(self, **more: str) -> "Request":
        stated = {name for name, _ in self.headers}
        added = [(name.replace("_", "-"), value) for name, value in more.items()]
        return replace(self, headers=(*self.headers, *(one for one in added if one[0] not in stated)))


def on(path: str, *rows: Row, method: str = "POST", compared: Compared = "whole", admin: bool = False) -> list[Request]:
    """A request for each row."""
    return [
        Request(
            label=label,
            method=method,
            path=path,
            headers=tuple((headers[0] if headers else {}).items()),
            body=_encode(body),
            compared=compared,
            admin=admin,
        )
        for label, body, *headers in rows
    ]


def get(path: str, label: str = "", compared: Compared = "whole", *, admin: bool = False, **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    (request,) = on(path, (label, None, named), method="GET", compared=compared, admin=admin)
    return request


def raw(label: str, content: bytes) -> Request:
    return Request(label=label, method="raw", path="", raw=content)


def _encode(body: Any) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()


def to_bytes(request: Request) -> bytes:
    """The request on the wire."""
    if request.raw is not None:
        return request.raw
    size = {} if request.body is None else {"content-length": str(len(request.body))}
    headers: Mapping[str, str] = {"host": "service", "x-request-id": ID} | size | dict(request.headers)
    lines = [f"{request.method} {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + (request.body or b"")
