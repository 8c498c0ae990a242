"""The client gives what the routes give, in order; a bulk job has every row once, also after a stop."""

import asyncio
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from pyarrow import Table, parquet

from packbert.service.library import client as client_module
from packbert.service.library import job as bulk
from packbert.service.library.client import AsyncClient, Client, Concurrency
from packbert.service.library.client_command import main
from packbert.service.library.files import FileError, Input
from packbert.service.library.job import Answers, Job, RequestFailed, run_job
from tests.service.fakes import on_loop
from tests.service.library.test_engine import ONE_REQUEST

TEXTS = [f"the dog number {number} is hairy" for number in range(41)]
LONG = "dog " * 400


@pytest.fixture
def client(server: httpx.Client) -> Iterator[Client]:
    with Client(str(server.base_url), patience_seconds=0.0) as client:
        yield client


@pytest.fixture
def texts_file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", "utf-8")
    return path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PART_ROWS", 16)


def embed_by_hand(server: httpx.Client, texts: list[str], **fields: Any) -> Any:
    return np.asarray(server.post("/embed", json={"inputs": texts, **fields}).json(), np.float32)


def test_embed_gives_the_vectors_of_the_route_as_an_array(server: httpx.Client, client: Client) -> None:
    found = client.embed(TEXTS * 4, normalize=True)
    assert found.dtype == np.float32
    assert np.array_equal(found, embed_by_hand(server, TEXTS, normalize=True)[np.tile(np.arange(41), 4)])
    assert client.embed([]).shape == (0, 0)


def test_the_other_tasks_give_one_answer_for_each_input(server: httpx.Client, client: Client) -> None:
    mask = "my [MASK] is hairy"
    for texts in ([mask], [mask, mask]):
        expected = server.post("/fill-mask", json={"inputs": mask, "top_k": 2}).json()
        assert client.fill_mask(texts, top_k=2) == [expected] * len(texts)
    pair = ("my dog", "is hairy")
    expected = server.post("/nsp", json={"inputs": {"text": pair[0], "text_pair": pair[1]}}).json()
    assert client.nsp([pair]) == [expected]
    with pytest.raises(RequestFailed, match="no labels head") as failed:
        client.predict(["a text", pair])
    assert failed.value.status == 501


def test_the_methods_of_one_request_give_what_their_routes_give(server: httpx.Client, client: Client) -> None:
    for method, (values, (route, body)) in ONE_REQUEST.items():
        response = server.post(route, json=body)
        if response.is_success:
            assert getattr(client, method)(*values) == response.json(), method
        else:
            with pytest.raises(RequestFailed) as caught:
                getattr(client, method)(*values)
            assert (caught.value.status, caught.value.message) == (response.status_code, response.json()["error"])


@on_loop
async def test_the_asynchronous_client_answers_many_calls_at_once(server: httpx.Client, client: Client) -> None:
    async with AsyncClient(str(server.base_url), patience_seconds=0.0) as asynchronous:
        vectors = await asyncio.gather(*(asynchronous.embed([text]) for text in TEXTS))
        assert np.array_equal(np.concatenate(vectors), client.embed(TEXTS))
        for method, (values, _) in ONE_REQUEST.items():
            try:
                expected = getattr(client, method)(*values)
            except RequestFailed as error:
                with pytest.raises(RequestFailed, match=re.escape(error.message)):
                    await getattr(asynchronous, method)(*values)
            else:
                assert await getattr(asynchronous, method)(*values) == expected


def test_a_refused_input_is_named_by_its_place_in_the_call(client: Client) -> None:
    with pytest.raises(RequestFailed, match="input 130: input has") as failed:
        client.embed([*TEXTS, *TEXTS, *TEXTS, *TEXTS[:7], LONG])
    assert failed.value.index == 130


def test_one_text_is_one_input(client: Client) -> None:
    assert client.tokenize("the dog") == client.tokenize(["the dog"])
    assert client.similarity("a dog", "the dog") == client.similarity("a dog", ["the dog"])
    assert np.array_equal(client.embed("my dog"), client.embed(["my dog"]))
    assert client.fill_mask("my [MASK] is hairy", top_k=1) == client.fill_mask(["my [MASK] is hairy"], top_k=1)


def test_the_vectors_of_tokens_are_those_of_each_text(server: httpx.Client, client: Client, tmp_path: Path) -> None:
    texts = ["my dog", "the cat sleeps on the mat"]
    expected = server.post("/embed", json={"inputs": texts, "pooling": "none"}).json()
    found = client.embed_tokens(texts)
    assert [len(one) for one in found] == [len(one) for one in expected]
    assert all(np.allclose(one, wanted, atol=1e-6) for one, wanted in zip(found, expected, strict=True))
    with pytest.raises(ValueError, match="call embed_tokens"):
        client.embed(texts, pooling="none")
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("\n".join(texts) + "\n", "utf-8")
    run_job(Job(task="embed", source=source, output=output, fields={"pooling": "none"}), client)
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [np.shape(line) for line in lines] == [one.shape for one in found]


Handler = Callable[[httpx.Request], httpx.Response]


def make_client(handler: Handler, *, max_requests: int = 4, patience_seconds: float = 60.0) -> Client:
    client = Client("http://test", max_requests=max_requests, patience_seconds=patience_seconds)
    client._http = httpx.Client(transport=httpx.MockTransport(handler), base_url="http://test")
    return client


def vectors(count: int, digest: str = "a") -> httpx.Response:
    content = io.BytesIO()
    np.save(content, np.zeros((count, 3), np.float32))
    return httpx.Response(200, content=content.getvalue(), headers={"x-model-digest": digest})


def answering(answer: Callable[[int], httpx.Response]) -> Client:
    """A client of a server without /info, whose answer depends on the number of inputs."""

    def handle(request: httpx.Request) -> httpx.Response:
        return answer(len(json.loads(request.content)["inputs"])) if request.content else httpx.Response(404)

    return make_client(handle)


def test_answers_of_two_models_are_no_answer() -> None:
    digests = iter("aab")
    client = answering(lambda count: vectors(count, next(digests)))
    with pytest.raises(RequestFailed, match="the answers are of two models"):
        client.embed(["my dog"] * 3 * client._limits.inputs)


def test_fewer_answers_than_inputs_are_an_error() -> None:
    with pytest.raises(RequestFailed, match="http://test/embed gave 1 answers to 2 inputs"):
        answering(lambda _: vectors(1)).embed(["my dog", "a cat"])


@pytest.mark.parametrize("content", [b"<html>" + 300 * b"a", b"", b"5", b"[1, 2", b'{"a": 1, "b": 2}'])
@pytest.mark.parametrize("task", ["embed", "fill_mask"])
def test_the_page_of_another_server_is_no_answer_and_its_beginning_is_shown(task: str, content: bytes) -> None:
    client = answering(lambda _: httpx.Response(200, content=content))
    sentence = f"gave no answers of this service, another server listens there: {content[:200].decode()}"
    with pytest.raises(RequestFailed, match=f"{re.escape(sentence)}$"):
        getattr(client, task)(["my [MASK]", "a [MASK]"])


def test_a_job_asks_for_the_model_that_it_names() -> None:
    paths: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        known = request.url.path in ("/info", "/models/zh/info")
        return httpx.Response(200 if known else 404, json={"limits": {}})

    client = make_client(handle)
    client.info("zh")
    client.info("other")  # of a service of one model, which accepts any name
    assert paths == ["/models/zh/info", "/models/other/info", "/info"]


@pytest.mark.parametrize(("status", "message"), [(404, "with BERT_ADMIN_PORT"), (401, "the key is missing or wrong")])
def test_a_service_that_hides_its_info_or_wants_a_key_gets_no_job(status: int, message: str, texts_file: Path) -> None:
    refused = httpx.Response(status, json={"error": "the key is missing or wrong" if status == 401 else "Not Found"})
    client = make_client(lambda request: refused if request.url.path == "/info" else vectors(1))
    if status == 404:  # a call needs no /info
        assert client.embed("my dog").shape == (1, 3)
    output = texts_file.with_name("out.npy")
    with pytest.raises(RequestFailed, match=message):
        run_job(Job(task="embed", source=texts_file, output=output, skip_errors=True), client)
    assert not output.exists()


@pytest.mark.parametrize("digests", ["aa", "ab"])
def test_a_request_that_is_too_large_is_divided_and_its_halves_are_of_one_model(digests: str) -> None:
    left, refused = iter(digests), httpx.Response(413, json={"error": "too many"})
    client = answering(lambda count: refused if count > 2 else vectors(count, next(left)))
    if digests == "aa":
        assert client.embed(["my dog"] * 4).shape == (4, 3)
        return
    with pytest.raises(RequestFailed, match="the answers are of two models"):
        client.embed(["my dog"] * 4)


def test_half_of_a_surrogate_pair_is_an_error_of_its_input(client: Client, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.npy"
    source.write_text('"my dog"\n"\\ud800"\n"a cat"\n', "utf-8")
    with pytest.raises(RequestFailed, match="line 2: a text holds half of a surrogate pair"):
        run_job(Job(task="embed", source=source, output=output), client)
    assert run_job(Job(task="embed", source=source, output=output, skip_errors=True), client) == 1
    assert np.isnan(np.load(output)).all(axis=1).tolist() == [False, True, False]
    with pytest.raises(RequestFailed, match="input 1: a text holds half") as failed:
        client.embed(["my dog", "\ud800", "a cat"])
    assert (failed.value.status, failed.value.index) == (422, 1)


def test_a_field_that_does_not_exist_ends_a_job_that_skips_errors(client: Client, texts_file: Path) -> None:
    job = Job(task="embed", source=texts_file, output=texts_file.with_name("out.npy"), fields={"poling": "mean"})
    with pytest.raises(RequestFailed, match="poling") as failed:
        run_job(replace(job, skip_errors=True), client)
    assert "skip-errors" not in str(failed.value)
    assert failed.value.index is None


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet"])
def test_refused_rows_have_no_answer_where_that_is_asked_for(client: Client, tmp_path: Path, suffix: str) -> None:
    source, output = tmp_path / "in.txt", tmp_path / f"out{suffix}"
    rows = list(TEXTS)
    rows[5] = rows[20] = ""
    rows[32:] = [LONG] * 9  # a part without any answer
    source.write_text("\n".join(rows) + "\n", "utf-8")
    strict = Job(task="embed", source=source, output=output)
    with pytest.raises(RequestFailed, match="line 6: input has no tokens"):
        run_job(strict, client)
    job = Job(task="embed", source=source, output=output, skip_errors=True)
    assert run_job(job, client) == 11
    if suffix == ".npy":
        missing = np.isnan(np.load(output)).all(axis=1).tolist()
    elif suffix == ".jsonl":
        missing = [json.loads(line) is None for line in output.read_text("utf-8").splitlines()]
    else:
        missing = [one is None for one in parquet.read_table(output)["output"].to_pylist()]
    assert missing == [number in (5, 20) or number >= 32 for number in range(41)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_null_text_has_no_answer_where_errors_are_skipped(client: Client, tmp_path: Path, suffix: str) -> None:
    source, output = tmp_path / f"in{suffix}", tmp_path / "out.npy"
    rows = [None if number == 3 or 16 <= number < 32 else text for number, text in enumerate(TEXTS)]
    if suffix == ".csv":  # a row without the last column has null there
        source.write_text("id,text\n" + "".join(f"1,{text}\n" if text else "1\n" for text in rows), "utf-8")
    elif suffix == ".jsonl":
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows), "utf-8")
    else:
        parquet.write_table(Table.from_pydict({"text": rows}), source)
    strict = Job(task="embed", source=source, output=output)
    done: list[int] = []
    with pytest.raises(FileError, match="4 has no text under 'text'"):
        run_job(strict, client)
    shutil.rmtree(tmp_path / "out.npy.parts")
    assert run_job(replace(strict, skip_errors=True), client, on_rows=done.append) == 17
    found, expected = np.load(output), client.embed(TEXTS)
    expected[[number for number, text in enumerate(rows) if text is None]] = np.nan
    assert np.array_equal(found, expected, equal_nan=True)
    assert sum(done) == len(rows)


def test_a_failure_after_a_null_names_its_own_row(
    monkeypatch: pytest.MonkeyPatch, client: Client, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": null}\n{"text": "a"}\n{"text": null}\n{"text": "b"}\n', "utf-8")
    job = Job(task="embed", source=source, output=tmp_path / "out.npy", skip_errors=True)
    failed = RequestFailed("the model raised", status=500, index=1)
    monkeypatch.setattr(client, "one_call", lambda _: lambda chunks: ((failed, chunk) for chunk in chunks))
    with pytest.raises(RequestFailed, match="line 4: the model raised"):
        run_job(job, client)


@pytest.mark.parametrize(
    ("task", "name", "content", "options", "message"),
    [
        ("embed", "a.txt", "x\n", ["-o", "out.csv"], "the suffix is the format"),
        ("fill-mask", "a.txt", "x\n", ["-o", "out.npy"], "are no vectors"),
        ("embed", "a.jsonl", "{\n", ["-o", "out.npy"], "line 1 is not JSON"),
        ("embed", "a.jsonl", '{"body": "x"}\n', ["-o", "out.npy"], "line 1 has no text under 'text'"),
        ("embed", "a.csv", "body\nx\n", ["-o", "out.npy", "--skip-errors"], "row 1 has no text under 'text'"),
        ("embed", "a.jsonl", '{"text": "x"}\n', ["-o", "out.npy", "--pair-column", "b"], "takes single texts"),
        ("nsp", "a.txt", "x\n", ["-o", "out.jsonl", "--pair-column", "b"], "--pair-column: a.txt has one text a line"),
        ("embed", "a.txt", "x\n", ["-o", "out.npy", "--column", "b"], "--column: a.txt has one text a line"),
        ("embed", "a.tsv", "x\ty\n", ["-o", "out.npy"], ".tsv is not read: write it as .jsonl"),
        ("embed", "a.JSON", "[]", ["-o", "out.npy"], ".json is not read: write it as .jsonl"),
        ("embed", "a.txt", b"x\n\xff\n", ["-o", "out.npy"], "line 2 is not UTF-8"),
        ("embed", "a.csv", b"text\nx\n\xff\n", ["-o", "out.npy"], "a.csv is not UTF-8"),
        ("embed", "a.csv", 'text\nx\n"y', ["-o", "out.npy"], "a.csv is no CSV after line 2"),
        ("embed", "a.parquet", "x\n", ["-o", "out.npy"], "a.parquet is no Parquet file"),
        ("embed", "a.txt", "my dog\n", ["-o", "out.npy", "--set", "pooling=none"], "only .jsonl holds"),
        ("embed", "a.txt", "my dog\n", ["-o", "out.parquet", "--set", "pooling=none"], "only .jsonl holds"),
        ("embed", "missing.txt", None, ["-o", "out.npy"], "No such file"),
        ("embed", "a.txt", "x\n", ["-o", "out.npy", "--set", "pooling"], "write FIELD=VALUE"),
    ],
)
def test_the_command_says_what_is_wrong_with_its_files(
    server: httpx.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    task: str,
    name: str,
    content: str | bytes | None,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert main([task, name, "--url", str(server.base_url), *options]) == 2
    assert message in capsys.readouterr().err


def test_the_command_embeds_a_file_with_the_fields_of_the_request(
    server: httpx.Client, texts_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = texts_file.with_name("out.npy")
    fields = ["--set", "pooling=mean", "--set", "normalize=true", "--set", "dimensions=3"]
    assert main(["embed", str(texts_file), "-o", str(output), "--url", str(server.base_url), *fields]) == 0
    expected = embed_by_hand(server, TEXTS, pooling="mean", normalize=True, dimensions=3)
    assert np.array_equal(np.load(output), expected)
    assert "41 rows" in capsys.readouterr().err


def failure_of(answer: httpx.Response | httpx.RequestError, *, patience_seconds: float) -> tuple[RequestFailed, int]:
    """What a request ends with, and how often it was sent."""
    calls = []

    def handle(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        if isinstance(answer, httpx.RequestError):
            raise answer
        return answer

    found = make_client(handle, patience_seconds=patience_seconds)._send("/embed", {}, accept="application/json")
    assert isinstance(found, RequestFailed)
    return found, len(calls)


def number_of(request: httpx.Request) -> int:
    number: int = json.loads(request.content)["number"]
    return number


def run(client: Client, chunks: Iterable[list[Input]]) -> Iterator[tuple[Answers, list[Input]]]:
    def answer(chunk: list[Input]) -> Answers:
        response = client._send("/embed", {"number": int(str(chunk[0]))}, accept="application/json")
        return response if isinstance(response, RequestFailed) else [response.json()]

    return client._run_in_order(chunks, answer)


def test_answers_come_in_the_order_of_chunks_though_some_are_refused() -> None:
    refused: set[int] = set()

    def handle(request: httpx.Request) -> httpx.Response:
        number = number_of(request)
        if number % 3 == 0 and number not in refused:
            refused.add(number)
            return httpx.Response(429, headers={"retry-after": "0"}, json={"error": "the queue is full"})
        return httpx.Response(200, json=number)

    chunks: list[list[Input]] = [[str(number)] for number in range(50)]
    assert list(run(make_client(handle), chunks)) == [([number], chunk) for number, chunk in enumerate(chunks)]
    assert refused == set(range(0, 50, 3))


def test_a_get_waits_between_its_attempts_as_long_as_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def refuse(_: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        raise httpx.ConnectError("there is no server")

    monkeypatch.setattr(client_module, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    found = make_client(refuse, patience_seconds=300.0)._send("/info", None, accept="application/json")
    assert isinstance(found, RequestFailed)
    assert now > 300 - client_module.MAX_PAUSE_SECONDS
    assert asked < 60


def test_few_chunks_are_read_ahead() -> None:
    read = 0

    def chunks() -> Iterator[list[Input]]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield [str(number)]

    client = make_client(lambda request: httpx.Response(200, json=number_of(request)), max_requests=4)
    found = run(client, chunks())
    next(found)
    assert read <= 8
    found.close()  # type: ignore[attr-defined]


def test_a_get_waits_for_no_request() -> None:
    client = make_client(lambda request: httpx.Response(200, json=request.method))
    client._concurrency.on_refusal(3600.0)
    response = client._send("/info", None, accept="application/json")
    assert isinstance(response, httpx.Response)
    assert response.json() == "GET"


@pytest.mark.parametrize("status", [400, 401, 413, 422, 501])
def test_an_error_of_the_request_is_returned_at_once_with_its_index(status: int) -> None:
    content = {"error": "input has 613 tokens", "code": "too_long", "index": 3}
    found, calls = failure_of(httpx.Response(status, json=content), patience_seconds=60.0)
    assert (found.status, found.index, str(found), calls) == (status, 3, "input has 613 tokens", 1)


CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"


@pytest.mark.parametrize(
    ("answer", "patience", "sentence"),
    [
        (httpx.ConnectError("refused"), 0.0, "no server answers at http://test/embed: refused"),
        (httpx.UnsupportedProtocol("Request URL is missing a protocol"), 60.0, "is missing a protocol"),
        (httpx.LocalProtocolError("Illegal header value"), 60.0, "Illegal header value"),
        (httpx.ConnectError(CERTIFICATE), 60.0, CERTIFICATE),
        (httpx.Response(429, headers={"retry-after": "20"}, json={"error": "it is full"}), 10.0, "it is full"),
        (httpx.Response(404, text="<html>nothing"), 60.0, "HTTP 404: <html>nothing"),
    ],
)
def test_what_does_not_pass_is_returned_at_once_in_its_own_words(
    answer: httpx.Response | httpx.RequestError, patience: float, sentence: str
) -> None:
    found, calls = failure_of(answer, patience_seconds=patience)
    assert (str(found).endswith(sentence), calls) == (True, 1)


def test_answers_raise_the_number_of_requests_and_a_refusal_halves_it_once() -> None:
    now = [0.0]
    concurrency = Concurrency(8, clock=lambda: now[0])
    for _ in range(100):
        concurrency.on_answer()
    assert concurrency.allowed == 8
    concurrency.on_refusal(2.0)
    concurrency.on_refusal(1.0)
    assert concurrency.allowed == 4
    now[0] = 3.0
    for _ in range(5):
        now[0] += 3.0
        concurrency.on_refusal(2.0)
    assert concurrency.allowed == 1
