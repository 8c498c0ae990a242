"""Requests in the dialects of other servers, for the bundled model, whose name is `sample`."""

import json
import struct
from typing import Any

from tests.contract.native import CAT, CHINESE, DOG, LONG, MASKED, SIMILARITY
from tests.contract.request import Request, get, on

INFER = "/v2/models/sample/infer"
JSON_LENGTH = "inference-header-content-length"
FOUR = {"dimensions": 4}


def tensor(*texts: str, name: str = "text", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)} | more


def binary(label: str, elements: bytes, *, size: int | None = None, length: str = "", after: bytes = b"") -> tuple:
    """A request whose text is in these bytes."""
    stated = {"binary_data_size": len(elements) if size is None else size}
    inputs = [{"name": "text", "shape": [1], "datatype": "BYTES", "parameters": stated}]
    head = json.dumps({"inputs": inputs, "parameters": FOUR}).encode()
    return label, head + elements + after, {JSON_LENGTH: length or str(len(head))}


def element(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


OPENAI = [
    *on(
        "/v1/embeddings",
        ("one text", {"input": DOG} | FOUR),
        ("a list", {"input": [DOG, CHINESE], "model": "any", "user": "u"} | FOUR),
        ("base64", {"input": [DOG, CAT], "encoding_format": "base64"} | FOUR),
        ("float", {"input": DOG, "encoding_format": "float"} | FOUR),
        ("another encoding", {"input": DOG, "encoding_format": "int8"}),
        ("not normalized", {"input": DOG, "normalize": False} | FOUR),
        ("pooling mean", {"input": DOG, "pooling": "mean"} | FOUR),
        ("pooling none", {"input": DOG, "pooling": "none"}),
        ("dimensions above the model's", {"input": DOG, "dimensions": 100_000}),
        ("token ids", {"input": [8334, 9560], "tokenizer": "sample"} | FOUR),
        ("lists of token ids", {"input": [[8334], [9560, 11979]], "tokenizer": "sample"} | FOUR),
        ("token ids without a tokenizer", {"input": [[8334]]}),
        ("token ids of another tokenizer", {"input": [8334], "tokenizer": "cl100k_base"}),
        ("a token id above the vocabulary", {"input": [[8334], [20_000]], "tokenizer": "sample"}),
        ("an empty list of token ids", {"input": [[]], "tokenizer": "sample"}),
        ("texts and ids", {"input": ["a", 7]}),
        ("an empty text", {"input": ["a", ""]}),
        ("no texts", {"input": []}),
        ("without input", {"model": "sample"}),
        ("too long", {"input": ["a", LONG]}),
        ("Voyage's fields", {"input": DOG, "truncation": True, "output_dimension": 3, "output_dtype": "float"}),
        ("Voyage's input_type", {"input": DOG, "input_type": "query"} | FOUR),
        ("Jina's fields", {"input": DOG, "task": "retrieval.query", "late_chunking": False} | FOUR),
        ("late chunking", {"input": DOG, "late_chunking": True}),
        ("infinity's modality", {"input": DOG, "modality": "text"} | FOUR),
        ("vLLM's truncation to fewer", {"input": DOG, "truncate_prompt_tokens": 5}),
        ("vLLM's other fields", {"input": DOG, "use_activation": False, "priority": 1, "padding": "max_length"} | FOUR),
        ("without special tokens", {"input": DOG, "add_special_tokens": False}),
        ("an unknown field", {"input": DOG, "inputs": DOG}),
        ("a field of other servers", {"text": DOG}),
        ("not JSON", "{"),
        ("too many texts", {"input": ["a"] * 9}),
        ("another coding", {"input": "a"}, {"content-encoding": "zstd"}),
    ),
    *on("/embeddings", ("one text", {"input": DOG} | FOUR), ("an error", {"input": ""})),
    get("/v1/models"),
    get("/v1/models/sample"),
    get("/v1/models/other"),
]
INFINITY_AND_VLLM = [
    get("/models"),
    *on(
        "/score",
        ("one against one", {"text_1": DOG, "text_2": CAT}),
        ("one against two", {"queries": DOG, "documents": [CAT, CHINESE]}),
        ("two against two", {"data_1": [DOG, CAT], "data_2": [CAT, DOG]}),
        ("two against three", {"text_1": [DOG, CAT], "text_2": ["a", "b", "c"]}),
        ("items", {"queries": DOG, "items": [CAT]}),
        ("sides that do not belong together", {"text_1": DOG, "documents": CAT}),
        ("one side", {"text_1": DOG}),
        ("a variant for pairs", {"text_1": DOG, "text_2": CAT, "variant": "original"}),
        ("an empty text of a pair", {"text_1": DOG, "text_2": ["a", ""]}),
        ("truncation to fewer", {"text_1": DOG, "text_2": CAT, "truncate_prompt_tokens": 3}),
    ),
    *on(
        "/pooling",
        ("one text", {"input": DOG} | FOUR),
        ("base64", {"input": [DOG, CAT], "encoding_format": "base64"} | FOUR),
        ("task embed", {"input": DOG, "task": "embed", "use_activation": False} | FOUR),
        ("task classify", {"input": DOG, "task": "classify"}),
        ("classify with dimensions", {"input": DOG, "task": "classify"} | FOUR),
        ("another task", {"input": DOG, "task": "token_embed"}),
    ),
]
RERANK = [
    *on(
        "/rerank",
        ("texts and documents", {"query": DOG, "texts": [CAT], "documents": [CAT]}),
        ("neither", {"query": DOG}),
        ("two numbers of results", {"query": DOG, "texts": [CAT], "top_n": 1, "top_k": 2}),
        ("a number of results below 0", {"query": DOG, "texts": [CAT], "top_n": -1}),
        ("without a query", {"texts": [CAT]}),
        ("a field like another", {"query": DOG, "docs": [CAT]}),
    ),
    *on("/v2/rerank", ("an unknown field", {"query": DOG, "documents": [CAT], "rank": 1})),
]
ROOT = [
    *on(
        "/",
        ("a mask", {"inputs": MASKED, "parameters": {"top_k": 1}}),
        ("targets without a mask", {"inputs": DOG, "targets": ["a"]}),
        ("a text", {"inputs": DOG, "dimensions": 4}),
        ("options", {"inputs": DOG, "options": {"wait_for_model": True}, "unknown": None} | FOUR),
        ("parameters that are null", {"inputs": DOG, "parameters": {"dimensions": 4, "normalize": None}}),
        ("similarity", {"inputs": SIMILARITY}),
        ("a query", {"query": DOG, "texts": [CAT]}),
        ("a question", {"inputs": {"question": "a", "context": "b"}}),
        ("choices", {"prompt": "a", "choices": ["b"]}),
        ("candidate labels", {"inputs": DOG, "candidate_labels": ["a", "b"]}),
        ("an unknown field", {"inputs": DOG, "normalise": True}),
        ("without inputs", {"parameters": {}}),
        ("no texts", {"inputs": []}),
        ("not JSON", "{"),
    ),
    get("/"),
    get("/", "as a browser", "type", accept="text/html,application/xhtml+xml,*/*;q=0.8"),
    get("/", "as a Chinese browser", "type", accept="text/html", accept_language="zh-CN,zh;q=0.9"),
    get("/ping"),
]
KSERVE = [
    get("/v2"),
    get("/v2/health/live"),
    get("/v2/health/ready"),
    get("/v2/models/sample"),
    get("/v2/models/sample/versions/1"),
    get("/v2/models/sample/ready"),
    get("/v2/models/sample/versions/1/ready"),
    get("/v2/models/other/ready"),
    *on(
        INFER,
        ("JSON", {"id": "mine", "inputs": [tensor(DOG, CAT)], "parameters": FOUR}),
        ("rows of one", {"inputs": [tensor(DOG) | {"shape": [1, 1], "data": [[DOG]]}], "parameters": FOUR}),
        ("an output by name", {"inputs": [tensor(DOG)], "outputs": [{"name": "embedding"}], "parameters": FOUR}),
        ("binary output", {"inputs": [tensor(DOG, CAT)], "parameters": FOUR | {"binary_data_output": True}}),
        (
            "a binary output by name",
            {
                "inputs": [tensor(DOG)],
                "outputs": [{"name": "embedding", "parameters": {"binary_data": True}}],
                "parameters": FOUR | {"normalize": True},
            },
        ),
        ("an unknown output", {"inputs": [tensor(DOG)], "outputs": [{"name": "logits"}]}),
        ("no inputs", {"inputs": []}),
        ("another input", {"inputs": [tensor(DOG, name="ids")]}),
        ("a pair", {"inputs": [tensor(DOG), tensor(CAT, name="text_pair")]}),
        ("two shapes", {"inputs": [tensor(DOG, CAT) | {"shape": [3]}]}),
        ("a shape of three axes", {"inputs": [tensor(DOG) | {"shape": [1, 1, 1]}]}),
        ("a shape below 0", {"inputs": [tensor(DOG) | {"shape": [-1]}]}),
        ("a shape of two columns", {"inputs": [tensor(DOG, CAT) | {"shape": [2, 2]}]}),
        ("a shape of no axis", {"inputs": [tensor(DOG) | {"shape": []}]}),
        ("shared memory", {"inputs": [tensor(DOG) | {"parameters": {"shared_memory_region": "x"}}]}),
        ("another datatype", {"inputs": [tensor(DOG) | {"datatype": "INT64"}]}),
        ("without data", {"inputs": [tensor(DOG) | {"data": None}]}),
        ("a number", {"inputs": [tensor(DOG) | {"data": [5]}]}),
        ("an unknown parameter", {"inputs": [tensor(DOG)], "parameters": {"sequence_id": 3}}),
        ("an empty text", {"inputs": [tensor(DOG, "")]}),
        ("too many texts", {"inputs": [tensor(*(["a"] * 9))]}),
        ("not JSON", "{"),
        binary("a binary input", element(DOG)),
        binary("a binary input that is cut", b"\x01\x00\x00"),
        binary("a size above the tensor", b"\xff\xff\xff\xffa"),
        binary("a binary input that is not UTF-8", struct.pack("<I", 1) + b"\xff"),
        binary("a size above the body", b"", size=10),
        binary("bytes after the tensor", element("a"), after=b"b"),
        binary("a length above the body", b"", length="9999"),
        binary("a length below 0", b"", length="-1"),
        binary("no element", b""),
        binary("two elements for one row", element("a") + element("b")),
    ),
    *on("/v2/models/sample/versions/1/infer", ("JSON", {"inputs": [tensor(DOG)], "parameters": FOUR})),
    *on("/v2/models/sample/versions/2/infer", ("a version that is not there", {"inputs": [tensor(DOG)]})),
    *on("/v2/models/other/infer", ("a model that is not there", {"inputs": [tensor(DOG)]})),
]
DIALECTS: list[Request] = [*OPENAI, *INFINITY_AND_VLLM, *RERANK, *ROOT, *KSERVE]
