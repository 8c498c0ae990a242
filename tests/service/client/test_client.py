"""The client gives what the routes give, in order; a bulk job has every row once, also after a stop."""

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pyarrow import Table, parquet

from benchmarks.harness.process import ServiceProcess, free_port
from packbert.service.library import job as bulk
from packbert.service.library.client import AsyncClient, Client
from packbert.service.library.client_command import main
from packbert.service.library.files import FileError
from packbert.service.library.job import Job, RequestFailed, run_job
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


def respond(monkeypatch: pytest.MonkeyPatch, client: Client, handle: Callable[[httpx.Request], httpx.Response]) -> None:
    """The client talks to `handle` instead of its server."""
    http = httpx.Client(transport=httpx.MockTransport(handle), base_url="http://test")
    monkeypatch.setattr(client._sender, "_http", http)


def vectors(count: int, digest: str = "a") -> httpx.Response:
    content = io.BytesIO()
    np.save(content, np.zeros((count, 3), np.float32))
    return httpx.Response(200, content=content.getvalue(), headers={"x-model-digest": digest})


def test_answers_of_two_models_are_no_answer(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    client.embed(TEXTS)  # has the limits of a request
    digests = iter("aab")
    respond(monkeypatch, client, lambda request: vectors(len(json.loads(request.content)["inputs"]), next(digests)))
    with pytest.raises(RequestFailed, match="the answers are of two models"):
        client.embed(["my dog"] * 3 * client._limits.inputs)


def test_fewer_answers_than_inputs_are_an_error(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    client.embed(TEXTS)
    respond(monkeypatch, client, lambda _: vectors(1))
    with pytest.raises(RequestFailed, match="http://test/embed gave 1 answers to 2 inputs"):
        client.embed(["my dog", "a cat"])


@pytest.mark.parametrize("content", [b"<html>Welcome</html>", b"", b"5", b"[1, 2", b'{"a": 1, "b": 2}'])
@pytest.mark.parametrize("task", ["embed", "fill_mask"])
def test_the_page_of_another_server_is_no_answer(
    task: str, content: bytes, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    client.embed(TEXTS)
    respond(monkeypatch, client, lambda _: httpx.Response(200, content=content))
    with pytest.raises(RequestFailed, match="gave no answers of this service, another server listens there"):
        getattr(client, task)(["my [MASK]", "a [MASK]"])


def test_a_job_asks_for_the_model_that_it_names(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    paths: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        known = request.url.path in ("/info", "/models/zh/info")
        return httpx.Response(200 if known else 404, json={"limits": {}})

    respond(monkeypatch, client, handle)
    client.info("zh")
    client.info("other")  # of a service of one model, which accepts any name
    assert paths == ["/models/zh/info", "/models/other/info", "/info"]


def test_a_model_whose_name_is_a_number_is_refused_by_the_server(client: Client, texts_file: Path) -> None:
    job = Job(task="embed", source=texts_file, output=texts_file.with_name("out.npy"), fields={"model": 7})
    with pytest.raises(RequestFailed, match="model"):
        run_job(job, client)


def test_a_service_with_an_admin_port_answers_calls_and_refuses_jobs(bert_artifact: Path, texts_file: Path) -> None:
    variables = {"BERT_MODEL": str(bert_artifact), "BERT_ADMIN_PORT": str(free_port())}
    with ServiceProcess(variables) as server, Client(server.url) as client:
        assert client.embed("my dog").shape == (1, 32)
        with pytest.raises(RequestFailed, match="with BERT_ADMIN_PORT"):
            run_job(Job(task="embed", source=texts_file, output=texts_file.with_name("out.npy")), client)


def test_a_request_that_is_too_large_as_a_whole_is_divided(client: Client) -> None:
    pairs = [(f"dog {number}", "is hairy") for number in range(9)]
    whole = client.one_call

    def refuse_more_than_two(task: str, **fields: Any) -> Any:
        def call(chunks: Any) -> Any:
            for chunk in chunks:
                if len(chunk) > 2:
                    yield RequestFailed("too many", status=413), chunk
                else:
                    yield from whole(task, **fields)([chunk])

        return call

    expected = client.nsp(pairs)
    client.one_call = refuse_more_than_two  # type: ignore[method-assign]
    assert client.nsp(pairs) == expected


def test_the_halves_of_a_request_are_of_one_model_too(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    client.embed(TEXTS)
    digests = iter("ab")

    def handle(request: httpx.Request) -> httpx.Response:
        count = len(json.loads(request.content)["inputs"])
        return httpx.Response(413, json={"error": "too many"}) if count > 2 else vectors(count, next(digests))

    respond(monkeypatch, client, handle)
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


def test_a_file_of_lines_becomes_an_array(server: httpx.Client, client: Client, texts_file: Path) -> None:
    output = texts_file.with_name("out.npy")
    rows: list[int] = []
    assert run_job(Job(task="embed", source=texts_file, output=output), client, on_rows=rows.append) == 0
    assert np.array_equal(np.load(output), embed_by_hand(server, TEXTS))
    assert sum(rows) == len(TEXTS)
    assert sorted(path.name for path in texts_file.parent.iterdir()) == ["out.npy", "texts.txt"]


def test_parquet_and_json_lines_in_and_out(server: httpx.Client, client: Client, tmp_path: Path) -> None:
    expected = embed_by_hand(server, TEXTS)
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(Table.from_pydict({"id": list(range(41)), "body": TEXTS}), source)
    run_job(Job(task="embed", source=source, output=output, column="body"), client)
    assert np.array_equal(np.asarray(parquet.read_table(output)["output"].to_pylist(), np.float32), expected)
    lines, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text("".join(json.dumps({"a": text, "b": "is it?"}) + "\n" for text in TEXTS), "utf-8")
    run_job(Job(task="nsp", source=lines, output=answers, column="a", pair_column="b"), client)
    found = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    pairs = {"inputs": [[text, "is it?"] for text in TEXTS]}
    assert found == server.post("/nsp", json=pairs).json()


def test_a_job_that_was_stopped_goes_on_with_every_row_once(
    server: httpx.Client, client: Client, texts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = texts_file.with_name("out.npy")
    job = Job(task="embed", source=texts_file, output=output)
    resolve = bulk._resolve

    def stop_in_the_second_part(*arguments: Any) -> Any:
        if arguments[3][0] >= 16:
            raise KeyboardInterrupt
        return resolve(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "_resolve", stop_in_the_second_part)
        with pytest.raises(KeyboardInterrupt):
            run_job(job, client)
    assert not output.exists()
    sent: list[int] = []

    def count(*arguments: Any) -> Any:
        sent.append(len(arguments[2]))
        return resolve(*arguments)

    monkeypatch.setattr(bulk, "_resolve", count)
    run_job(job, client)
    assert sum(sent) == len(TEXTS) - 16  # the first part was kept
    assert np.array_equal(np.load(output), embed_by_hand(server, TEXTS))


def test_parts_of_another_job_are_refused(client: Client, texts_file: Path) -> None:
    output = texts_file.with_name("out.npy")
    parts = texts_file.with_name("out.npy.parts")
    parts.mkdir()
    (parts / "job.json").write_text("{}", "utf-8")
    (parts / "000000000000.0").touch()
    with pytest.raises(FileError, match="parts of another job"):
        run_job(Job(task="embed", source=texts_file, output=output), client)
    shutil.rmtree(parts)


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


def test_a_column_that_does_not_exist_is_no_null(client: Client, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("body\nmy dog\n", "utf-8")
    with pytest.raises(FileError, match="row 1 has no text under 'text'"):
        run_job(Job(task="embed", source=source, output=tmp_path / "out.npy", skip_errors=True), client)


@pytest.mark.parametrize(
    ("task", "name", "content", "options", "message"),
    [
        ("embed", "a.txt", "x\n", ["-o", "out.csv"], "the suffix is the format"),
        ("fill-mask", "a.txt", "x\n", ["-o", "out.npy"], "are no vectors"),
        ("embed", "a.jsonl", "{\n", ["-o", "out.npy"], "line 1 is not JSON"),
        ("embed", "a.jsonl", '{"body": "x"}\n', ["-o", "out.npy"], "line 1 has no text under 'text'"),
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


def test_the_client_imports_neither_the_server_nor_the_engine() -> None:
    script = "import sys; from packbert import Client; print({name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "httpx" in loaded
    assert not any(name in loaded for name in ("fastapi", "onnxruntime", "tokenizers", "pyarrow"))
