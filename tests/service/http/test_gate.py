"""Every POST route, under every header that chooses a parser, refuses the worst bodies at a bounded cost."""

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import pytest

from packbert.service.artifact import open_artifact
from packbert.service.errors import Overloaded
from packbert.service.http.app import TASKS, create_app, task_routes
from packbert.service.http.body import INLINE_BYTES, start_thread
from packbert.service.http.dialects.kserve import INFER
from packbert.service.http.dialects.spec import TaskSpec
from packbert.service.models import Models
from packbert.service.settings import Settings
from packbert.service.tasks.flow import Tasks
from tests.service.http.fake_model import Meter, call, measured
from tests.service.in_process import InProcessModel
from tests.service.tokenization.reading import open_tokenizer

LONGEST_TURN_SECONDS = 0.25  # of processor time: 0.02 with room for any machine; the worst were 0.4 to 7 s
MEMORY_MIB = 128
HEADS = (
    *("cls", "mean", "pooler", "fill_mask", "pair", "labels"),
    *("tags", "spans", "choices", "attention", "tokens", "sparse"),
)
MAIN_FIELDS = ("inputs", "input", "texts", "ids", "text_1", "query", "question", "prompt")  # for the worst values
EMPTY_BLOCKS = bytes.fromhex(  # eight of deflate, each with its own Huffman codes and no data
    "04c081000000000090ff6b100007020000000040feaf41001c080000000000f9"
    "bf060170200000000000e4ff1a04c081000000000090ff6b1000070200000000"
    "40feaf41001c080000000000f9bf060170200000000000e4ff1a"
)
VALID = {"strings", "pairs", "a string", "escapes"}  # where small, some routes answer them


class FullQueue:
    """Refuses the requests that come so far."""

    def admit(self, tokens: int, inputs: int = 1, *, timeout_seconds: float, max_seconds: float = 0.0) -> Any:
        raise Overloaded(f"{inputs} sequences, {tokens} tokens, {timeout_seconds} s, {max_seconds} s at most")


class Service:
    """The routes over a model that claims all heads and runs nothing, or over several."""

    def __init__(self, backend: Any, runner: asyncio.Runner, turns: Meter) -> None:
        self.backend, self.runner, self.turns = backend, runner, turns
        self.app = create_app(backend)

    def post(self, path: str, body: bytes, headers: dict[bytes, bytes]) -> tuple[int, bytes, float]:
        """The status, the body, and the seconds of the longest turn."""
        self.turns.start()
        status, content = self.runner.run(call(self.app, "POST", path, body, headers.items()))
        self.turns.end_turn()
        return status, content, self.turns.longest


@pytest.fixture(scope="module")
def service(bert_artifact: Path) -> Iterator[Service]:
    real = open_artifact(bert_artifact)
    claimed = replace(
        real.manifest, heads=HEADS, sparse="relu", labels=("entailment", "other"), pair_labels=("is_next", "not_next")
    )
    artifact, settings = replace(real, manifest=claimed), Settings(model=str(bert_artifact))
    with open_tokenizer(artifact) as tokenizer, measured() as (runner, turns):
        tasks = Tasks(manifest=claimed, tokenizer=tokenizer, queue=cast(Any, FullQueue()), settings=settings)
        start_thread()
        yield Service(InProcessModel(artifact, settings, tasks), runner, turns)


def repeat(item: bytes, size: int) -> bytes:
    return b"[" + (item + b",") * (size // (len(item) + 1)) + item + b"]"


VALUES: dict[str, Callable[[int], bytes]] = {  # of a field, in about so many bytes
    "lists": lambda size: repeat(b"[]", size),
    "pairs": lambda size: repeat(b'["",""]', size),
    "objects": lambda size: repeat(b"{}", size),
    "nested lists": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "nested objects": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "numbers": lambda size: repeat(b"-1", size),
    "long numbers": lambda size: repeat(b"9" * 4299, size),
    "a long number": lambda size: b"9" * size,
    "strings": lambda size: repeat(b'""', size),
    "a string": lambda size: b'"' + b"a" * size + b'"',
    "escapes": lambda size: b'"' + b'\\"' * (size // 2) + b'"',
    "an open string": lambda size: b'"' + b'\\"' * (size // 2),
    "spaces": lambda size: b" " * size + b"[]",
    # as much as the limits let through, and an error at the end
    "texts": lambda size: repeat(b'"%s"' % (b"\\u6211" * (size // 2100 // 6)), size)[:-1] + b",{}]",
    "wrong strings": lambda size: repeat(b'"a"', min(size, 40_000))[:-1] + b",{}]",
    "wrong pairs": lambda size: repeat(b'["a","b"]', min(size, 22_000))[:-1] + b",{}]",
    "wrong numbers": lambda size: repeat(b"999", min(size, 800_000))[:-1] + b",{}]",
}


def of_value(value: Callable[[int], bytes]) -> Callable[[bytes, int], bytes]:
    return lambda name, size: b'{"%s":%s}' % (name, value(size))


BODIES: dict[str, Callable[[bytes, int], bytes]] = {  # of the main field's name and a size
    **{kind: of_value(value) for kind, value in VALUES.items()},
    "unknown fields": lambda name, size: b'{"%s":1,%s}' % (name, b",".join(b'"%07d":1' % n for n in range(size // 12))),
    "some unknown fields": lambda name, size: (
        b'{"%s":1,%s}' % (name, b",".join(b'"%07d":null' % n for n in range(min(size // 15, 4800))))
    ),
    "a long name": lambda name, size: b'{"%s":1,"%s":1}' % (name, b"a" * min(size, 1_000_000)),
    "a long prompt": lambda name, size: (
        b'{"%s":"a","prompt_name":"%s","model":"a"}' % (name, "我".encode() * min(size // 3, 99_000))
    ),
    "a huge shape": lambda _, size: tensor(repeat(b"9", size), b'"data":["a"]'),
    "a shape of long numbers": lambda _, size: tensor(b"[%s]" % (b"9" * 4000), b'"data":["a"]')[: size + 5000],
    "a long timeout": lambda _, __: (
        tensor(b"[1]", b'"data":["a"]')[:-1] + b',"parameters":{"timeout":1%s}}' % (b"0" * 400)
    ),
    "not JSON": lambda _, size: b"\x00" * size,
}


def tensor(shape: bytes, more: bytes) -> bytes:
    return b'{"inputs":[{"name":"text","datatype":"BYTES","shape":%s,%s}]}' % (shape, more)


Headers = dict[bytes, bytes]
BINARY_HEADERS = sorted({INFER.binary_header, *(spec.binary_header for spec in TASKS.values())} - {b""})
FULL = ("/embed", "/v2/models/bert/infer")  # get bodies of the largest size: one parser reads those of all routes


@lru_cache(4)
def compress(body: bytes) -> bytes:
    return gzip.compress(body, 1)


HEADERS: tuple[Callable[[bytes], tuple[Headers, bytes]], ...] = (  # that choose a parser or a writer
    lambda body: ({}, body),
    lambda body: ({b"content-encoding": b"gzip", b"accept": b"application/x-npy"}, compress(body)),
    lambda body: (dict.fromkeys(BINARY_HEADERS, b"%d" % len(body)), body),
)


def make_members(size: int) -> tuple[Headers, bytes]:
    return {b"content-encoding": b"gzip"}, gzip.compress(b"") * (size // 20)


def make_elements(size: int) -> tuple[Headers, bytes]:
    head = tensor(b"[1]", b'"parameters":{"binary_data_size":%d}' % size)
    return dict.fromkeys(BINARY_HEADERS, b"%d" % len(head)), head + bytes(size)


def main_field(spec: TaskSpec) -> bytes:
    fields = spec.request_model.model_fields
    return next((name for name in MAIN_FIELDS if name in fields), next(iter(fields))).encode()


@lru_cache(4)
def make_body(name: bytes, kind: str, size: int) -> bytes:
    return BODIES[kind](name, size)


def check(service: Service, path: str, kind: str, headers: Headers, sent: bytes) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the highest memory so far is what it is now
    before = read_mib("VmRSS")
    status, content, seconds = service.post(path, sent, headers)
    grown = read_mib("VmHWM") - before
    case = (path, kind, headers, status, content[:300])
    assert 400 <= status < 500 or (kind in VALID and status == 200), case
    assert len(content) < 2**15 or status == 200, case
    if seconds >= LONGEST_TURN_SECONDS:  # a garbage collection or a pause of the machine may have fallen into it
        *_, seconds = service.post(path, sent, headers)
    assert seconds < LONGEST_TURN_SECONDS, (seconds, case)
    assert grown < MEMORY_MIB, (grown, case)


def read_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


@pytest.mark.parametrize("kind", BODIES)
def test_every_route_refuses_the_worst_small_bodies_under_every_header(service: Service, kind: str) -> None:
    """As many bytes as are parsed on the event loop."""
    for path, spec in task_routes(service.backend).items():
        body = make_body(main_field(spec), kind, INLINE_BYTES - 400)
        for header in HEADERS:
            check(service, path, kind, *header(body))


@pytest.mark.parametrize("kind", BODIES)
def test_every_route_refuses_the_worst_large_bodies(service: Service, kind: str) -> None:
    """Each header on the routes of FULL, and in turns on the others."""
    for number, (path, spec) in enumerate(task_routes(service.backend).items()):
        size = service.backend.settings.max_body_bytes - 6000 if path in FULL else 2**19
        body = make_body(main_field(spec), kind, size)
        for header in HEADERS if path in FULL else HEADERS[number % 3 :][:1]:
            check(service, path, kind, *header(body))


@pytest.mark.parametrize("make", [make_members, make_elements])
@pytest.mark.parametrize("size", [INLINE_BYTES - 400, 8 * 2**20 - 400])
def test_every_route_refuses_very_many_members_and_elements(
    service: Service, make: Callable[[int], tuple[Headers, bytes]], size: int
) -> None:
    headers, sent = make(size)
    for path in task_routes(service.backend):
        check(service, path, make.__name__, headers, sent)


@pytest.mark.parametrize("kind", BODIES)
def test_the_routes_of_several_models_and_their_swap_refuse_the_worst_bodies(service: Service, kind: str) -> None:
    one = service.backend
    settings = one.settings.model_copy(update={"admin_key": "swap"})
    backends: Any = []
    for name in ("bert", "other"):
        artifact = one.artifact.served_as(name)
        backends.append(InProcessModel(artifact, settings, replace(one.tasks, manifest=artifact.manifest)))
    models = Models(backends)
    models.take_turn = lambda *_: pytest.fail("a swap began")
    several = Service(models, service.runner, service.turns)
    paths = {"/embed": b"inputs", "/models/other/embed": b"inputs", "/admin/models": b"model"}
    for path, field_name in (paths | {"/v2/models/other/infer": b"inputs"}).items():
        for size in (INLINE_BYTES - 400, 2**19):
            check(several, path, kind, {b"authorization": b"Bearer swap"}, make_body(field_name, kind, size))


def test_a_body_that_is_slow_to_decode_ends_with_its_deadline(service: Service) -> None:
    """Empty blocks of deflate, each with codes of its own: 8 MB take a second."""
    body = gzip.compress(b"")[:10] + EMPTY_BLOCKS * (8 * 2**20 // len(EMPTY_BLOCKS) - 1)
    headers = {b"content-encoding": b"gzip", b"x-request-timeout-ms": b"5"}
    status, content, seconds = service.post("/embed", body, headers)
    assert (status, json.loads(content)["code"]) == (503, "deadline")
    assert seconds < LONGEST_TURN_SECONDS
