"""Requests to the edge: paths, methods, pages, keys, other origins, and bytes that are hardly HTTP."""

from tests.contract.native import DOG
from tests.contract.request import Request, get, on, raw

BODY = {"inputs": DOG, "dimensions": 4}
COUNT = b'{"inputs": "a", "count": true}'  # its answer has no float, which other processors may round otherwise
TASKS = ("/embed", "/fill-mask", "/tag", "/v1/embeddings", "/rerank", "/score", "/v2/models/sample/infer", "/")
ORIGIN = "https://page.example"
CLOSE = b"connection: close\r\n"
AGAIN = b"\r\ntransfer-encoding: chunked"


def methods(path: str, *names: str) -> list[Request]:
    return [request for name in names for request in on(path, ("", None), method=name)]


def post(*headers: bytes, body: bytes = COUNT, version: bytes = b"HTTP/1.1") -> bytes:
    """The bytes of a request with these headers."""
    return b"POST /tokenize %s\r\nhost: service\r\n%s\r\n\r\n%s" % (version, b"\r\n".join(headers), body)


def chunked(coding: bytes = b"chunked", after: bytes = b"") -> bytes:
    """The bytes of a request with a body in one chunk, and these trailers."""
    body = b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(COUNT), COUNT, after)
    return post(b"transfer-encoding: " + coding, CLOSE.strip(), body=body)


def health(*headers: bytes, target: bytes = b"/health", version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([b"GET %s %s" % (target, version), b"host: service", b"connection: close", *headers, b"", b""])


PATHS = [
    get("/health"),
    get("/ready"),
    get("/info", compared="keys"),
    get("/metrics", compared="series"),
    get("/metrics", "as OpenMetrics", "series", accept="application/openmetrics-text;version=1.0.0"),
    get("/openapi.json", compared="document"),
    *(get(path, "in gzip", "type", accept_encoding="gzip") for path in ("/openapi.json", "/metrics", "/info")),
    get("/health", "in gzip", accept_encoding="gzip"),
    get("/docs", compared="type"),
    get("/page/main.js", compared="type"),
    *(get(path) for path in ("/page/nowhere.js", "/page/", "/page/../routes.py", "/page/%2e%2e/routes.py")),
    get("/favicon.ico", compared="type"),
    get("/health", "with a query", accept="*/*"),
    get("/", "as a probe", accept="*/*"),
    get("/health?verbose=1"),
    get("/health/"),
    get("//health"),
    get("/%68ealth"),
    get("/embed%2f"),
    get("/nowhere"),
    get("/zzzzzzzzzz"),
    get("/v1/nowhere"),
    get("/v2/nowhere"),
    get("/openai/v1/models"),
    get("/redoc"),
    *(get(path) for path in ("/chat/completions", "/api/v1/embeddings", "/openai/deployments/x/embeddings")),
    *(get(path) for path in ("/models/x", "/models/x/embed", "/models/x/v1/embeddings")),
    *on("/fill_mask", ("a path like another", BODY)),
    *on("/embed/", ("a slash at the end", BODY)),
    *on("/v1/embedding", ("a path like another", BODY)),
    *on("/openai/deployments/sample/embeddings", ("Azure's path", {"input": DOG})),
    *on("/embed?x=1", ("a query", BODY)),
    *methods("/health", "HEAD", "OPTIONS", "POST", "DELETE"),
    *methods("/ready", "HEAD"),
    *methods("/ping", "HEAD"),
    *methods("/nowhere", "HEAD", "OPTIONS"),
    *methods("/v1/models", "HEAD", "OPTIONS", "PUT"),
    *(request for path in TASKS for request in methods(path, "OPTIONS", "DELETE")),
    *methods("/embed", "GET", "HEAD", "PUT", "PATCH", "TRACE"),
    *methods("/v1/embeddings", "GET", "HEAD"),
    *on("/embed", ("a preflight where no origin may call", None, {"origin": ORIGIN}), method="OPTIONS"),
    *on("/embed", ("a key that is not asked for", BODY, {"authorization": "Bearer x"})),
    *on("/embed", ("another origin", BODY, {"origin": ORIGIN})),
]
PROTOCOL = [
    raw("GET", health()),
    raw("HTTP/1.0", b"GET /health HTTP/1.0\r\n\r\n"),
    raw(
        "HTTP/1.0 that asks to keep the connection", b"GET /ping HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" + health()
    ),
    raw("pipelined", b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n" + health()),
    raw("a POST and a GET pipelined", post(b"content-length: %d" % len(COUNT)) + health()),
    raw("an error and a GET pipelined", post(b"content-length: 2", body=b"no") + health()),
    raw("chunked", chunked()),
    raw("chunked with a trailer", chunked(after=b"x-request-id: mine\r\n")),
    raw("chunked in another case", chunked(b"Chunked\r\nte: gzip, chunked")),
    raw("the coding gzip alone", chunked(b"gzip")),
    raw("the coding gzip and chunked in another header", chunked(b"gzip" + AGAIN)),
    raw("chunked twice", chunked(b"chunked, chunked")),
    raw("chunked twice, in two headers", chunked(b"chunked" + AGAIN)),
    raw("a chunk without a size", post(b"transfer-encoding: chunked", body=b"zz\r\n{}\r\n0\r\n\r\n")),
    raw("a body in tiny chunks", post(b"transfer-encoding: chunked", body=b"1\r\nx\r\n" * 1500)),
    raw("a coding beside chunked", post(b"transfer-encoding: gzip, chunked", body=b"2\r\n{}\r\n0\r\n\r\n" + health())),
    raw(
        "a length and chunked", post(b"content-length: 2", b"transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n")
    ),
    raw("two lengths", post(b"content-length: 2", b"content-length: 3", body=b"{} ")),
    raw("a length below 0", post(b"content-length: -1", body=b"")),
    raw("a length in words", post(b"content-length: two", body=b"{}")),
    raw("a length above the limit", post(b"content-length: 8388609", CLOSE.strip(), body=b"")),
    raw("a length of 30 digits", post(b"content-length: 999999999999999999999999999999", body=b"")),
    raw("expect of HTTP/1.0", post(b"content-length: %d" % len(COUNT), b"expect: 100-continue", version=b"HTTP/1.0")),
    raw("expect", post(b"content-length: %d" % len(COUNT), b"expect: 100-continue", CLOSE.strip())),
    raw("no request line", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 hello\r\n\r\n"),
    raw("a space in the path", b"GET /he alth HTTP/1.1\r\nhost: x\r\n\r\n"),
    raw("an unknown method", b"BREW /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
    raw("a method in lower case", b"get /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
    raw("HTTP/2.0", health(version=b"HTTP/2.0")),
    raw("HTTP/1.9", health(version=b"HTTP/1.9")),
    raw("HTTP/0.9", health(version=b"HTTP/0.9")),
    raw("HTTP/2 without TLS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    raw("HTTP/2 without TLS, and a frame", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0\0\0\0\0"),
    raw("CONNECT", b"CONNECT / HTTP/1.1\r\nhost: x\r\n\r\n" + health()),
    raw("an absolute target without a path", health(b"connection: upgrade\r\nupgrade: h2c", target=b"http://service")),
    raw("no version", b"GET /health\r\n\r\n"),
    raw("no host", b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n"),
    raw("two hosts", health(b"host: other")),
    raw("two hosts of HTTP/1.0", health(b"Host: other", version=b"HTTP/1.0")),
    raw("a space in the name of a header", health(b"two words: 1")),
    raw("a space before a colon", health(b"x-name : value")),
    raw("a header that is folded", health(b"x-name: a", b" b")),
    raw("a header without a name", health(b": value")),
    raw("a header without a colon", health(b"x-name")),
    raw("a NUL in a header", health(b"x-name: a\x00b")),
    raw("bytes above ASCII in a header", health("x-name: é".encode())),
    raw("lines that end in LF", b"GET /health HTTP/1.1\nhost: x\nconnection: close\n\n"),
    raw("an absolute target", health(target=b"http://service/health")),
    raw("an asterisk", b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
    raw("an upgrade", health(b"upgrade: websocket", b"sec-websocket-key: AAAA", b"sec-websocket-version: 13")),
    raw("a head above the limit", health(b"x-name: " + b"a" * 17_000)),
    raw("a path above the limit", health(target=b"/" + b"a" * 17_000)),
    raw("an empty line before", b"\r\n\r\n" + health()),
    raw("an id with blanks around it", health(b"x-request-id: \t mine \t ")),
    raw("HEAD", b"HEAD /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
    raw("a path that is not ASCII", health(target="/é".encode())),
    raw("a path with a fragment", health(target=b"/health#top")),
    raw("a path with an escape that is cut", health(target=b"/health%2")),
]
KEYS = [
    *on(
        "/embed",
        ("without a key", BODY),
        ("a key", BODY, {"authorization": "Bearer alpha"}),
        ("the second key", BODY, {"authorization": "bearer  beta"}),
        ("a key of the file", BODY, {"authorization": "Bearer gamma"}),
        ("a wrong key", BODY, {"authorization": "Bearer delta"}),
        ("a key with another scheme", BODY, {"authorization": "Basic alpha"}),
        ("a key without a scheme", BODY, {"authorization": "alpha"}),
        ("a scheme without a key", BODY, {"authorization": "Bearer"}),
        ("the beginning of a key", BODY, {"authorization": "Bearer alph"}),
        ("a key and more", BODY, {"authorization": "Bearer alpha2"}),
        ("a key and bytes above ASCII", BODY, {"authorization": "Bearer alphaÿ"}),
        ("two keys", BODY, {"authorization": "Bearer alpha,beta"}),
        ("x-api-key", BODY, {"x-api-key": "alpha"}),
        ("api-key", BODY, {"api-key": "gamma"}),
        ("a wrong key before not JSON", "{", {"x-api-key": "no"}),
        ("an origin that may call", BODY, {"origin": ORIGIN, "x-api-key": "alpha"}),
        ("an origin that may not", BODY, {"origin": "https://other.example", "x-api-key": "alpha"}),
        ("an origin without a key", BODY, {"origin": ORIGIN}),
    ),
    *on("/v1/embeddings", ("without a key", {"input": "a"})),
    *on("/rerank", ("without a key", {"query": "a", "texts": ["b"]})),
    *on("/score", ("without a key", {"inputs": "a"})),
    *on(
        "/embed",
        (
            "a preflight",
            None,
            {"origin": ORIGIN, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"},
        ),
        (
            "a preflight of another origin",
            None,
            {"origin": "https://other.example", "access-control-request-method": "POST"},
        ),
        (
            "a preflight for DELETE",
            None,
            {"origin": ORIGIN, "access-control-request-method": "DELETE"},
        ),
        method="OPTIONS",
    ),
    get("/health", "of another origin", origin=ORIGIN),
    get("/v1/models", "without a key"),
    get("/v1/models", "with a key", x_api_key="beta"),
    get("/models", "without a key"),
    get("/v2", "without a key"),
    get("/", "as a browser", accept="text/html"),
]
ADMIN = [  # with BERT_ADMIN_PORT
    *(get(path) for path in ("/info", "/metrics", "/docs", "/openapi.json", "/static-offline-docs/swagger-ui.css")),
    get("/metrics", "with the other port in headers", host="service:9000", x_forwarded_port="9000"),
    get("/health"),
    get("/ready"),
    get("/v1/models"),
    get("/", "as a browser", accept="text/html"),
    get("/page/main.js"),
    *on("/embed", ("one text", BODY)),
    get("/info", "of the admin port", "keys", admin=True),
    get("/metrics", "of the admin port", "series", admin=True),
    get("/docs", "of the admin port", "type", admin=True),
    get("/openapi.json", "of the admin port", "document", admin=True),
    get("/health", "of the admin port", admin=True),
    get("/ready", "of the admin port", admin=True),
    get("/v2", "of the admin port", admin=True),
    get("/v1/models", "of the admin port", admin=True),
    *(request for path in ("/", "/embed", "/v1/embeddings") for request in on(path, ("", BODY), admin=True)),
]
EDGE = [*PATHS, *PROTOCOL]
