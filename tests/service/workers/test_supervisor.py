"""Real processes: several workers answer as one process does, and survive each other's failures."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from packbert.service.workers.supervisor import FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS, STABLE_AFTER_SECONDS, Backoff
from tests.export.goldens import Exported
from tests.service.engine.changed_files import with_own_digests
from tests.service.polling import until
from tests.service.workers.service_processes import BULK, SUMS, WORKERS, Service, is_alive, load
from tests.serving import fail_to_serve

ADMIN_KEY, NAME = "a key of the administrator", "one"


@pytest.fixture(scope="module")
def settings(bert_artifact: Path) -> dict[str, str]:
    more = {"BERT_TOKEN_BUDGET": "256", "BERT_MAX_WAITING_TOKENS": "400000", "BERT_DRAIN_SECONDS": "10"}
    return {"BERT_MODEL": str(bert_artifact), "BERT_MAX_INPUTS": "100", "BERT_WORKERS": str(WORKERS)} | more


@pytest.fixture(scope="module")
def service(settings: dict[str, str]) -> Iterator[Service]:
    with Service(settings) as process:
        yield process


def test_info_and_metrics_have_the_fields_and_series_of_one_process(service: Service, server: httpx.Client) -> None:
    assert service.get("/info").json()["workers"] == WORKERS
    alone, together = server.get("/info").json(), service.get("/info").json()
    assert alone["workers"] == 1
    assert alone.keys() == together.keys()
    assert sorted(service.children) == ["worker-0", "worker-1"]

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
    assert sorted(resident) == ["supervisor", "worker-0", "worker-1"]
    assert all(float(size) > 2**23 for size in resident.values())


def test_metrics_of_any_worker_are_the_sums_over_all(service: Service) -> None:
    before = {series: service.count(series) for series in (*SUMS, "bert_requests_total", "bert_errors_total")}
    with ThreadPoolExecutor(8) as pool:
        statuses = Counter(
            pool.map(lambda i: service.post("/embed", {"inputs": "the cat" if i % 4 else ""}).status_code, range(60))
        )
    assert statuses == {200: 45, 422: 15}
    for _ in range(4 * WORKERS):
        assert service.count("bert_requests_total") == before["bert_requests_total"] + 60
        for series, each in SUMS.items():
            assert service.count(series) == before[series] + 45 * each
        assert service.count("bert_errors_total") == before["bert_errors_total"] + 15


def has_changed(service: Service, worker: str, before: int) -> bool:
    return service.children.get(worker, before) != before


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_worker_that_ends_or_hangs_loses_only_its_own_requests(
    settings: dict[str, str], fault: signal.Signals
) -> None:
    with Service(settings) as service:
        before = service.children
        with load(service) as (ends, others):
            os.kill(before["worker-0"], fault)
            if fault == signal.SIGSTOP:
                with ThreadPoolExecutor(20) as pool:  # new connections, half of them for the worker that hangs
                    answers = list(pool.map(lambda _: httpx.get(service.url + "/health").status_code, range(20)))
                assert (answers, service.children) == ([200] * 20, before)  # not after the end of the worker
            until(lambda: has_changed(service, "worker-0", before["worker-0"]))
            done = ends[200]
            until(lambda: ends[200] >= done + 20)
            until(lambda: service.count("bert_ready") == 1)
        assert not others  # no 503 either: the replacement gets no connection while it loads
        failed = sum(count for end, count in ends.items() if end != 200)
        assert failed <= 6  # at most one for each client
        assert service.children["worker-1"] == before["worker-1"]
        assert service.count("bert_requests_total") >= ends[200]  # the counts of the killed worker are not lost
        until(lambda: service.count("bert_inflight_http_requests") == 0)
        assert service.count('bert_errors_total{reason="worker_ended"}') <= failed
        received = service.count('bert_queue_requests_total{outcome="received"}')
        assert 2 * received == service.count("bert_queue_requests_total")


def test_a_killed_supervisor_leaves_no_worker(settings: dict[str, str]) -> None:
    service = Service(settings | {"BERT_PORT": "0"})
    service.start()
    try:
        until(lambda: len(service.children) == WORKERS)
        children = service.children
    finally:
        service.process.kill()
        service.process.wait()
        service.close()
    until(lambda: not any(is_alive(pid) for pid in children.values()))


def test_sigterm_under_load_answers_all_requests_and_exits_with_0(settings: dict[str, str]) -> None:
    with Service(settings | {"BERT_TOKEN_BUDGET": "16"}) as service:
        children = service.children
        received = 'bert_queue_requests_total{outcome="received"}'
        before = service.count(received)
        with ThreadPoolExecutor(8) as pool:
            requests = [pool.submit(service.post, "/embed", {"inputs": BULK[:50]}) for _ in range(8)]
            until(lambda: service.count(received) >= before + 8)
            exit_code = service.terminate()
            assert [one.result().status_code for one in requests] == [200] * 8
        assert exit_code == 0
        assert not any(is_alive(pid) for pid in children.values())


def test_the_supervisor_imports_only_what_it_uses() -> None:
    code = "import sys, packbert.service.workers.supervisor; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"onnxruntime", "numpy", "fastapi", "starlette", "tokenizers", "prometheus_client"}
    assert not set(finished.stdout.split()) & heavy


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_fails_the_start(service: Service, settings: dict[str, str], workers: str) -> None:
    finished = fail_to_serve(settings | {"BERT_PORT": str(service.port), "BERT_WORKERS": workers})
    assert finished.returncode == 1
    assert f"cannot listen on 127.0.0.1:{service.port} (BERT_HOST, BERT_PORT)" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1  # neither a traceback nor a line about the model
    missing = fail_to_serve(settings | {"BERT_PORT": str(service.port), "BERT_MODEL": "/nowhere"})
    assert "cannot listen" in missing.stderr  # before the artifact is read


def test_a_model_that_cannot_be_loaded_ends_the_service(
    settings: dict[str, str], bert_artifact: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(bert_artifact, tmp_path / "broken"))
    (broken / "cpu" / "model.onnx").write_bytes(b"nothing")
    with_own_digests(broken / "cpu")
    finished = fail_to_serve(settings | {"BERT_MODEL": str(broken), "BERT_PORT": "0"})
    assert finished.returncode == 1
    assert "the model cannot be loaded" in finished.stderr


def test_the_first_short_run_costs_no_delay_and_further_ones_double_it() -> None:
    backoff = Backoff()
    delays = [backoff.next_delay(1.0) for _ in range(20)]
    assert delays[:4] == [0.0, FIRST_DELAY_SECONDS, 2 * FIRST_DELAY_SECONDS, 4 * FIRST_DELAY_SECONDS]
    assert max(delays) == MAX_DELAY_SECONDS
    assert backoff.next_delay(STABLE_AFTER_SECONDS) == 0.0
    assert backoff.next_delay(1.0) == 0.0


def connections_of(pid: int) -> int:
    """Established TCP connections that a process has open."""
    inodes = {link for one in Path(f"/proc/{pid}/fd").iterdir() if (link := str(one.readlink())).startswith("socket:")}
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(line[3] == "01" and f"socket:[{line[9]}]" in inodes for line in lines)


def spread(service: Service) -> list[int]:
    """The connections of each worker while eight clients are connected."""
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=service.url)) for _ in range(8)]
        for client in clients:
            assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200
        return [connections_of(pid) for pid in service.children.values()]


def test_connections_are_spread_evenly(service: Service) -> None:
    until(lambda: spread(service) == [4, 4])  # a worker that an earlier test has ended may still be loading


def test_all_workers_serve_what_was_swapped_also_those_that_start_later(
    settings: dict[str, str], bert_artifact: Path, exported: Exported, tmp_path: Path
) -> None:
    other = exported("bert-labels").root
    with Service(settings | {"BERT_ADMIN_KEY": ADMIN_KEY, "BERT_SERVED_MODEL_NAME": NAME}) as service:

        def digests() -> set[str]:
            return {service.get("/info").json()["digest"] for _ in range(4 * WORKERS)}

        def swap(folder: Path | str) -> httpx.Response:
            """Empty: the source of the last swap is read again."""
            body = {"model": NAME} | ({"source": str(folder)} if folder else {})
            return service.post("/admin/models", body, authorization=f"Bearer {ADMIN_KEY}")

        [first] = digests()
        answer = swap(other)
        assert (answer.status_code, answer.json()["swapped"]) == (200, True)
        [second] = digests()
        assert second != first
        assert swap(other).json()["swapped"] is False
        assert swap(tmp_path).status_code == 422
        with ThreadPoolExecutor(2) as pool:
            both = [one.result() for one in [pool.submit(swap, bert_artifact), pool.submit(swap, other)]]
        for worker in ("worker-0", "worker-1"):
            before = service.children[worker]
            [now] = digests()
            os.kill(before, signal.SIGKILL)
            until(partial(has_changed, service, worker, before))
            until(lambda: service.count("bert_ready") == 1)
            assert digests() == {now}
            assert {swap("").json()["digest"] for _ in range(4 * WORKERS)} == {now}
        assert [one.json()["swapped"] for one in both].count(True) >= 1
