"""Real processes: API workers and an engine worker answer as one process does, and survive each other's failures."""

import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from packbert.model_export.artifact.manifest import Manifest
from packbert.service.workers.child import private_folder
from packbert.service.workers.supervisor import FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS, STABLE_AFTER_SECONDS, Backoff
from tests.service.polling import DEADLINE_SECONDS, leave_when, until
from tests.service.workers.service_processes import (
    APIS,
    BULK,
    REQUESTS,
    SUMS,
    Service,
    comparable,
    is_alive,
    is_ready,
    load,
)
from tests.serving import fail_to_serve


@pytest.fixture(scope="module")
def settings(bert_artifact: Path) -> dict[str, str]:
    more = {"BERT_TOKEN_BUDGET": "256", "BERT_MAX_WAITING_TOKENS": "400000", "BERT_DRAIN_SECONDS": "10"}
    return {"BERT_ARTIFACT": str(bert_artifact), "BERT_MAX_INPUTS": "100", "BERT_API_PROCESSES": str(APIS)} | more


@pytest.fixture(scope="module")
def service(settings: dict[str, str]) -> Iterator[Service]:
    with Service(settings) as process:
        yield process


def test_every_answer_and_every_error_has_the_bytes_of_one_process(service: Service, server: httpx.Client) -> None:
    for path, body, headers in REQUESTS:
        alone = comparable(server.post(path, json=body, headers=headers))
        for _ in range(3):
            assert comparable(service.post(path, body, **headers)) == alone, (path, body)


def test_concurrent_requests_get_the_answers_of_one_process(service: Service, server: httpx.Client) -> None:
    requests = [request for request in REQUESTS if request[0] != "/nothing"] * 4
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: comparable(service.post(one[0], one[1], **one[2])), requests))
    known = [
        comparable(server.post(path, json=body, headers=headers))
        for path, body, headers in requests[: len(requests) // 4]
    ]
    assert found == known * 4


def test_info_and_metrics_have_the_fields_and_series_of_one_process(service: Service, server: httpx.Client) -> None:
    assert service.get("/info").json()["api_processes"] == APIS
    alone, together = server.get("/info").json(), service.get("/info").json()
    assert alone["api_processes"] == 0
    assert alone.keys() == together.keys()
    assert sorted(service.children) == ["api-0", "api-1", "engine"]

    def series(text: str) -> set[str]:
        return {
            line.split()[0]
            for line in text.splitlines()
            if not line.startswith(("#", "process_")) and 'status="' not in line
        }

    scraped = service.get("/metrics").text
    assert series(server.get("/metrics").text) <= series(scraped)
    assert "bert_ready 1.0" in scraped.splitlines()
    resident = dict(re.findall(r'^process_resident_memory_bytes{process="(.+)"} (.+)$', scraped, re.MULTILINE))
    assert sorted(resident) == ["api-0", "api-1", "engine", "supervisor"]
    assert all(float(size) > 2**23 for size in resident.values())


def test_timings_add_up_and_count_the_transfer_to_the_engine_as_queueing(service: Service) -> None:
    started = time.perf_counter()
    answer = service.post("/embed", {"inputs": BULK[:20]})
    parts = {
        part.split(";dur=")[0]: float(part.split("=")[1]) / 1000 for part in answer.headers["server-timing"].split(", ")
    }
    assert list(parts) == ["tokenize", "queue", "forward", "format"]
    assert min(parts.values()) >= 0
    assert parts["forward"] > 0
    assert sum(parts.values()) < time.perf_counter() - started


def test_metrics_of_any_api_worker_are_the_sums_over_all(service: Service) -> None:
    before = {series: service.count(series) for series in (*SUMS, "bert_requests_total", "bert_errors_total")}
    with ThreadPoolExecutor(8) as pool:
        statuses = Counter(
            pool.map(lambda i: service.post("/embed", {"inputs": "the cat" if i % 4 else ""}).status_code, range(60))
        )
    assert statuses == {200: 45, 422: 15}
    for _ in range(4 * APIS):
        assert service.count("bert_requests_total") == before["bert_requests_total"] + 60
        for series, each in SUMS.items():
            assert service.count(series) == before[series] + 45 * each
        assert service.count("bert_errors_total") == before["bert_errors_total"] + 15


def test_every_request_in_the_queue_has_one_outcome(service: Service) -> None:
    with load(service):
        text = service.get("/metrics").text
    counts = {
        line.split()[0]: float(line.split()[1])
        for line in text.splitlines()
        if line.startswith(("bert_queue_requests", "bert_inflight_requests"))
    }
    received = counts.pop('bert_queue_requests_total{outcome="received"}')
    assert received == sum(counts.values())


def test_requests_of_disconnected_clients_leave_the_engines_queue_at_once(service: Service) -> None:
    cancelled = 'bert_queue_requests_total{outcome="cancelled"}'
    before = service.count(cancelled)
    leave_when(lambda: service.count("bert_waiting_requests") >= 5, service.port, BULK, clients=20)
    until(lambda: service.count("bert_waiting_tokens") == 0)
    assert service.count(cancelled) >= before + 5  # requests in the queue did not run
    assert service.count("bert_inflight_requests") <= 1


def test_foreign_connections_to_the_engines_socket_are_dropped_without_effect_on_others(service: Service) -> None:
    path = service.folder / "engine.sock"
    assert service.folder.stat().st_mode & 0o777 == 0o700
    with load(service) as (ends, _):
        for content in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x04\x00\x00\x00junk", b"\x01\x00\x00\x00\xc1"):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(DEADLINE_SECONDS)
                stranger.connect(str(path))
                stranger.sendall(content)
                assert stranger.recv(100) == b""
    assert set(ends) == {200}


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_an_api_worker_that_ends_or_hangs_loses_only_its_own_requests_and_is_replaced(
    service: Service, fault: signal.Signals
) -> None:
    before = service.children
    answered = service.count("bert_requests_total")
    with load(service) as (ends, others):
        os.kill(before["api-0"], fault)
        until(lambda: service.children.get("api-0", before["api-0"]) != before["api-0"])
        done = ends[200]
        until(lambda: ends[200] >= done + 20)
    assert not others
    assert sum(count for end, count in ends.items() if end != 200) <= 6  # at most one for each client
    assert service.children["engine"] == before["engine"]
    assert service.children["api-1"] == before["api-1"]
    assert service.count("bert_requests_total") >= answered + ends[200]  # the counts of the killed worker are not lost
    until(lambda: service.count("bert_inflight_requests") == 0)


def test_a_killed_engine_is_replaced_and_requests_get_503_meanwhile(service: Service) -> None:
    before = service.children
    with load(service) as (ends, others):
        os.kill(before["engine"], signal.SIGKILL)
        until(lambda: not is_ready(service))
        assert service.get("/health").status_code == 200
        assert service.get("/metrics").status_code == 200
        until(lambda: is_ready(service))
        done = ends[200]
        until(lambda: ends[200] >= done + 20)
    assert set(ends) == {200, 503}
    assert {answer.json()["code"] for answer in others} <= {"unavailable", "loading"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in others)
    after = service.children
    assert after["engine"] != before["engine"]
    assert {name: pid for name, pid in after.items() if name != "engine"} == {
        name: pid for name, pid in before.items() if name != "engine"
    }


def test_an_engine_whose_event_loop_hangs_is_killed_and_replaced(service: Service) -> None:
    """After SIGSTOP it neither answers nor ends: its connections stay open, and its watchdog does not run."""
    before = service.children
    with load(service) as (ends, others):
        os.kill(before["engine"], signal.SIGSTOP)
        until(lambda: service.children.get("engine", before["engine"]) != before["engine"])
        until(lambda: is_ready(service))
        done = ends[200]
        until(lambda: ends[200] >= done + 20)
    assert set(ends) == {200, 503}
    assert {answer.json()["code"] for answer in others} <= {"unavailable", "loading"}
    assert {name: pid for name, pid in service.children.items() if name != "engine"} == {
        name: before[name] for name in ("api-0", "api-1")
    }


def test_a_run_that_hangs_ends_only_the_engine_and_its_requests_get_503(bert_artifact: Path) -> None:
    endless = {
        "inputs": ["a cat and a dog " * 25] * 2000,
        "pooling": "mean",
    }  # 254,000 tokens in one run: seconds on one core
    more = {"BERT_TOKEN_BUDGET": "260000", "BERT_MAX_WAITING_TOKENS": "500000", "BERT_MAX_WAIT_SECONDS": "1000"}
    more |= {
        "BERT_API_PROCESSES": "1",
        "BERT_THREADS": "1",
        "BERT_RUN_TIMEOUT_SECONDS": "0.5",
        "BERT_ARTIFACT": str(bert_artifact),
    }
    with Service(more) as service:
        before = service.children
        hanging = service.post("/embed", endless)
        assert hanging.status_code == 503
        assert "stuck: a run has lasted 0.5 s" in hanging.json()["error"]
        until(lambda: service.children.get("engine", before["engine"]) != before["engine"])
        until(lambda: is_ready(service))
        assert service.post("/embed", {"inputs": "the cat"}).status_code == 200
        assert service.children["api-0"] == before["api-0"]


def test_sigterm_under_load_answers_all_requests_and_exits_with_0(settings: dict[str, str]) -> None:
    with Service(settings | {"BERT_TOKEN_BUDGET": "16"}) as service:
        children, folder = service.children, service.folder
        received = 'bert_queue_requests_total{outcome="received"}'
        before = service.count(received)
        with ThreadPoolExecutor(8) as pool:
            requests = [pool.submit(service.post, "/embed", {"inputs": BULK[:50]}) for _ in range(8)]
            until(lambda: service.count(received) >= before + 8)
            exit_code = service.terminate()
            assert [one.result().status_code for one in requests] == [200] * 8
        assert exit_code == 0
        assert not any(is_alive(pid) for pid in children.values())
        assert not folder.exists()


def test_deadlines_a_full_queue_and_a_drain_without_time_give_the_errors_of_one_process(bert_artifact: Path) -> None:
    more = {
        "BERT_API_PROCESSES": "1",
        "BERT_TOKEN_BUDGET": "16",
        "BERT_THREADS": "1",
        "BERT_MAX_WAITING_TOKENS": "160000",
        "BERT_DRAIN_SECONDS": "0",
    }
    more["BERT_MAX_WAIT_SECONDS"] = "1000"
    with Service({"BERT_ARTIFACT": str(bert_artifact)} | more) as service, ThreadPoolExecutor(12) as pool:
        requests = [
            pool.submit(
                service.post, "/embed", {"inputs": BULK * 4}, **{"x-request-timeout-ms": "60000" if i % 4 else "1"}
            )
            for i in range(12)
        ]
        until(lambda: service.count('bert_errors_total{reason="overloaded"}') > 0)
        until(lambda: service.count("bert_inflight_requests") >= 2)
        assert service.terminate() == 0
        answers = [one.result() for one in requests]
    codes = {413: ("too_much_for_deadline",), 429: ("overloaded",), 503: ("deadline", "unavailable")}
    assert all(answer.status_code == 200 or answer.json()["code"] in codes[answer.status_code] for answer in answers)
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)
    assert {answer.json()["code"] for answer in answers if answer.status_code != 200} >= {"overloaded", "unavailable"}


def test_a_killed_supervisor_leaves_no_worker_and_no_folder(settings: dict[str, str]) -> None:
    service = Service(settings | {"BERT_PORT": "0"})
    service.start()
    try:
        until(lambda: len(service.children) == APIS + 1)
        children, folder = service.children, service.folder
    finally:
        service.process.kill()
        service.process.wait()
        service.close()
    until(lambda: not any(is_alive(pid) for pid in children.values()))
    assert not folder.exists()


def test_a_service_that_is_killed_as_a_whole_leaves_its_folder_to_the_next_one(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container that runs out of memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine, living = settings | {"TMPDIR": str(tmp_path)}, tmp_path / "packbert-of-another-program"
    living.mkdir()
    killed = Service(mine | {"BERT_PORT": "0"})
    killed.start()
    try:
        until(lambda: len(killed.children) == APIS + 1)
        children, folder = killed.children, killed.folder
        for pid in children.values():
            os.kill(pid, signal.SIGSTOP)  # so that none of them removes it
    finally:
        killed.process.kill()
        killed.process.wait()
        killed.close()
    for pid in children.values():
        os.kill(pid, signal.SIGKILL)
    assert folder.exists()
    with private_folder() as first, private_folder() as second:
        assert not folder.exists()
        assert {*tmp_path.iterdir()} == {first, second, living}
    assert [*tmp_path.iterdir()] == [living]


def test_an_invalid_setting_fails_the_start_with_one_line(settings: dict[str, str]) -> None:
    finished = fail_to_serve(settings | {"BERT_API_PROCESSES": "many"})
    assert finished.returncode == 2
    assert finished.stderr.startswith("packbert serve: BERT_API_PROCESSES: many is not a whole number from 0 to 256")
    assert len(finished.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        (
            "packbert.service.workers.supervisor",
            "onnxruntime numpy fastapi starlette tokenizers prometheus_client",
        ),
        ("packbert.service.workers.api_worker", "onnxruntime"),
    ],
)
def test_a_process_imports_only_what_it_uses(module: str, heavy: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(finished.stdout.split()) & set(heavy.split())


@pytest.mark.parametrize("apis", ["0", "2"])
def test_a_port_in_use_fails_the_start(service: Service, settings: dict[str, str], apis: str) -> None:
    finished = fail_to_serve(settings | {"BERT_PORT": str(service.port), "BERT_API_PROCESSES": apis})
    assert finished.returncode == 1
    assert f"cannot listen on 127.0.0.1:{service.port} (BERT_HOST, BERT_PORT)" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1  # neither a traceback nor a line about the model
    missing = fail_to_serve(settings | {"BERT_PORT": str(service.port), "BERT_ARTIFACT": "/nowhere"})
    assert "cannot listen" in missing.stderr  # before the artifact is read


def test_a_missing_temporary_folder_fails_the_start_with_one_message(settings: dict[str, str]) -> None:
    code = "import sys, tempfile; tempfile.tempdir = '/nowhere'; "
    code += "from packbert.service.__main__ import main; sys.exit(main())"
    environment = (
        {name: value for name, value in os.environ.items() if not name.startswith("BERT_")}
        | settings
        | {"BERT_PORT": "0"}
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert finished.returncode == 1
    assert "cannot create a folder with the engine's socket (TMPDIR)" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_model_that_cannot_be_loaded_ends_the_service(
    settings: dict[str, str], bert_artifact: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bert_artifact, broken)
    manifest = Manifest.read(broken / "cpu")
    (broken / "cpu" / "model.onnx").write_bytes(b"nothing")
    files = {**manifest.files, "model.onnx": sha256(b"nothing").hexdigest()}
    dataclasses.replace(manifest, files=files).write(broken / "cpu")
    finished = fail_to_serve(settings | {"BERT_ARTIFACT": str(broken), "BERT_PORT": "0"})
    assert finished.returncode == 1
    assert "the model cannot be loaded" in finished.stderr


def test_the_first_short_run_costs_no_delay_and_further_ones_double_it() -> None:
    backoff = Backoff()
    delays = [backoff.next_delay(1.0) for _ in range(20)]
    assert delays[:4] == [0.0, FIRST_DELAY_SECONDS, 2 * FIRST_DELAY_SECONDS, 4 * FIRST_DELAY_SECONDS]
    assert max(delays) == MAX_DELAY_SECONDS
    assert backoff.next_delay(STABLE_AFTER_SECONDS) == 0.0
    assert backoff.next_delay(1.0) == 0.0
