"""Bodies of 8 MB, valid or not, that cost a parser much time or memory."""

from collections.abc import Callable

SIZE = 8 * 2**20 - 2**10
TIMEOUT_MS = 3000


def _list(item: bytes) -> bytes:
    return b'{"inputs":[' + b",".join([item] * (SIZE // (len(item) + 1))) + b"]}"


def _texts(unit: bytes, count: int = 2040) -> bytes:
    text = b'"' + unit * (SIZE // count // len(unit) - 4) + b'"'
    return b'{"inputs":[' + b",".join([text] * count) + b"]}"


def _pairs() -> bytes:
    return b'{"inputs":[' + b",".join([b'["a","' + b"b" * 4090 + b'"]'] * 2040) + b"]}"


def _post(path: str, body: bytes) -> bytes:
    deadline = f"x-request-timeout-ms: {TIMEOUT_MS}\r\n"  # so that the texts of a valid body are not all tokenized
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{deadline}content-length: {len(body)}\r\n\r\n".encode() + body


def _small_chunks() -> bytes:
    return b"POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * (SIZE // 6)


REQUESTS: dict[str, Callable[[], bytes]] = {
    "one text": lambda: _post("/embed", b'{"inputs":"' + b"word " * (SIZE // 5) + b'"}'),
    "2,040 texts": lambda: _post("/embed", _texts(b"a")),  # of one word each, which is one token
    r"2,040 texts of \n": lambda: _post("/embed", _texts(rb"\n")),
    r"2,040 texts of \u4e00": lambda: _post("/embed", _texts(rb"\u4e00")),
    "2,040 pairs to /nsp": lambda: _post("/nsp", _pairs()),
    'empty pairs to /nsp: ["",""]': lambda: _post("/nsp", _list(b'["",""]')),
    "empty lists to /nsp: []": lambda: _post("/nsp", _list(b"[]")),
    "empty lists to /predict": lambda: _post("/predict", _list(b"[]")),
    "empty texts": lambda: _post("/embed", _list(b'""')),
    "numbers": lambda: _post("/embed", _list(b"1")),
    "lists of 500 numbers": lambda: _post(
        "/v1/embeddings", _list(b"[" + b"1," * 500 + b"1]").replace(b"inputs", b"input")
    ),
    "nested lists": lambda: _post("/embed", b"[" * SIZE),
    "690,000 unknown fields": lambda: _post("/embed", b"{%s}" % b",".join(b'"%07d":1' % n for n in range(690_000))),
    "a long field name": lambda: _post("/embed", b'{"' + b"k" * SIZE + b'":1}'),
    "a long truncation_direction": lambda: _post(
        "/embed", b'{"truncation_direction":"%s"}' % (b"\xd0\xaf" * (SIZE // 2))
    ),
    "spaces": lambda: _post("/embed", b" " * SIZE + b'{"inputs":"a"}'),
    "backslashes": lambda: _post("/embed", b'{"inputs":["' + b"\\" * SIZE + b'"]}'),
    "chunks of one byte": _small_chunks,
    "endless headers": lambda: b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (SIZE // 4),
    "a wrong path": lambda: _post("/none", _list(b"[]")),
}
