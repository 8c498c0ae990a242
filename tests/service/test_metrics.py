"""What is scraped: every series from the start, sums that add up, labels from fixed sets."""

import math
import os
import re
import resource
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from benchmarks.harness.client import values_of
from packbert.service import errors
from packbert.service.errors import ServiceError
from packbert.service.observability.cells import Files
from packbert.service.observability.metrics import Metrics, StateCollector, render
from packbert.service.observability.series import REASONS, REQUEST_SECONDS
from packbert.service.scheduling.batcher import Batcher
from packbert.service.scheduling.request import Chunk
from packbert.service.scheduling.watchdog import BatchReport
from packbert.service.workers.supervisor import open_file
from tests.service.fakes import FakeRunner, FakeTime, make_queue, played, sequence


def text_of(metrics: Metrics) -> str:
    return render([metrics.collector()])[0].decode()


def render_metrics(metrics: Metrics) -> dict[str, float]:
    return values_of(text_of(metrics))


def test_every_series_is_there_before_anything_happens() -> None:
    (metrics := Metrics()).add_task("embed")
    values = render_metrics(metrics)
    assert values['bert_requests_total{status="200",task="embed"}'] == 0
    assert values['bert_request_seconds_count{task="embed"}'] == 0
    for reason in REASONS:
        assert values[f'bert_errors_total{{reason="{reason}"}}'] == 0


def test_names_follow_the_conventions() -> None:
    text = text_of(Metrics())
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE):
        assert name.startswith("bert_")
        assert kind != "counter" or name.endswith("_total")


def test_every_kind_of_error_has_a_reason_of_its_own() -> None:
    assert {
        kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServiceError)
    } <= set(REASONS)
    assert errors.Unavailable("the model is loading", code="loading").reason == "unavailable"


def test_an_unknown_reason_does_not_make_a_new_label() -> None:
    metrics = Metrics()
    before = set(render_metrics(metrics))
    metrics.refused("embed", 422, "something new")
    assert {name for name in set(render_metrics(metrics)) - before if "bert_errors" in name} == set()


def test_a_batch_counts_its_tokens_slots_and_seconds() -> None:
    metrics = Metrics()
    metrics.batch(BatchReport(sequences=3, tokens=40, slots=64, waited_seconds=0.5, ran_seconds=0.25))
    values = render_metrics(metrics)
    assert (values["bert_tokens_total"], values["bert_attention_slots_total"]) == (40, 64)
    assert (values["bert_forward_seconds_sum"], values["bert_queue_seconds_sum"]) == (0.25, 0.5)
    assert values["bert_batch_sequences_sum"] == 3


def test_a_self_check_counts_apart() -> None:
    metrics = Metrics()
    metrics.batch(BatchReport(sequences=1, tokens=9, slots=9, waited_seconds=0.5, ran_seconds=0.25, canary=True))
    grown = {name: value for name, value in render_metrics(metrics).items() if value and "_bucket" not in name}
    assert grown == {"bert_canary_seconds_count": 1, "bert_canary_seconds_sum": 0.25}


def answer(metrics: Metrics, seconds: float = 0.25) -> None:
    metrics.answered("embed", seconds=seconds, stages=(0.01, 0.02, 0.03, 0.04), sizes=(2, 7, 40, 900), truncated=0)


def test_a_histogram_of_requests_is_what_the_library_would_write() -> None:
    """Below, on and between the bounds, and above all of them."""
    registry, metrics = CollectorRegistry(), Metrics()
    theirs = Histogram("bert_request_seconds", "-", ["task"], buckets=REQUEST_SECONDS, registry=registry)
    for seconds in (0.0, 0.0005, *REQUEST_SECONDS, 0.06, 1000.0):
        theirs.labels("embed").observe(seconds)
        answer(metrics, seconds)
    written = values_of(generate_latest(registry).decode())
    expected = {name: value for name, value in written.items() if "_created" not in name}
    assert len(expected) > len(REQUEST_SECONDS)
    assert {name: value for name, value in render_metrics(metrics).items() if name in expected} == expected


@pytest.fixture
def files() -> dict[str, Files]:
    """Of three workers, the last of which has not started."""
    return {name: (open_file(), open_file()) for name in ("worker-0", "worker-1", "worker-2")}


def test_requests_of_all_workers_are_summed_and_those_of_ended_ones_stay(files: dict[str, Files]) -> None:
    one, other = Metrics("worker-0", files), Metrics("worker-1", files)
    for metrics in (one, other, other):
        answer(metrics)
    one.cells[0] += 1  # in flight when the process ends
    other.cells[1] += 1
    replaced = Metrics("worker-0", files)
    answer(replaced)
    values = render_metrics(other)
    assert render_metrics(replaced) == values
    assert values['bert_errors_total{reason="worker_ended"}'] == 1
    assert values['bert_requests_total{status="500",task="unknown"}'] == 1
    assert values['bert_request_seconds_count{task="embed"}'] == 4
    assert values['bert_stage_seconds_sum{stage="format"}'] == pytest.approx(0.16)
    assert (values["bert_request_texts_sum"], values["bert_response_bytes_sum"]) == (8, 3600)
    in_flight = [values[f'bert_inflight_http_requests{{stage="{stage}"}}'] for stage in ("receive", "process")]
    assert in_flight == [0, 1]


def test_labels_that_are_not_known_from_the_start_are_summed_and_continued(files: dict[str, Files]) -> None:
    one, other = Metrics("worker-0", files), Metrics("worker-1", files)
    one.refused("embed", 422, "invalid")
    other.operational("/health", 200)
    other.refused("embed", 422, "invalid")
    one.tokenizing(2, 5000)  # when the process ends
    replaced = Metrics("worker-0", files)
    replaced.operational("/health", 503)
    replaced.refused("embed", 422, "invalid")
    values = render_metrics(other)
    assert values['bert_requests_total{status="422",task="embed"}'] == 3
    assert [values[f'bert_operational_requests_total{{path="/health",status="{n}"}}'] for n in (200, 503)] == [1, 1]
    assert (values["bert_tokenizing_requests"], values["bert_tokenizing_characters"]) == (0, 0)


@pytest.mark.parametrize("has_file", [False, True], ids=["memory", "file"])
def test_there_is_room_for_hundreds_of_models_and_for_every_status(files: dict[str, Files], has_file: bool) -> None:
    metrics = Metrics("worker-0", files) if has_file else Metrics()
    for number in range(300):
        metrics.loaded(f"model-{number}", 0.5)
        metrics.in_memory(f"model-{number}", True)
        metrics.agreed(f"model-{number}", [1.0], [True])
        metrics.compared(f"model-{number}", [0.1, 0.2])
    for status in range(400, 600):
        for number in range(20):
            metrics.refused(f"task-{number}", status, "invalid")
        metrics.operational("/health", status)
    values = render_metrics(metrics)
    assert values['bert_load_seconds_sum{model="model-299"}'] == 0.5
    assert values['bert_shadow_seconds_sum{by="shadow",model="model-299"}'] == 0.2
    assert sum(name.startswith("bert_requests_total") for name in values) >= 200 * 20


def test_a_new_task_and_status_is_counted_without_a_free_descriptor(files: dict[str, Files]) -> None:
    metrics, limits = Metrics("worker-0", files), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        metrics.refused("embed", 418, "invalid")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert render_metrics(metrics)['bert_requests_total{status="418",task="embed"}'] == 1


def test_the_processes_are_told_apart_and_an_ended_one_is_left_out() -> None:
    identity = SimpleNamespace(license="", languages=())
    manifest = SimpleNamespace(name="m", precision="int8", device="cpu", identity=identity)
    artifact: Any = SimpleNamespace(manifest=manifest, digest="d")
    state = StateCollector([artifact], {"worker-0": os.getpid(), "worker-1": 2**22 + 1}, {"m": "loading", "n": ""})
    text = render([state])[0].decode()
    values = values_of(text)
    assert values["bert_ready"] == values['bert_model_ready{model="m"}'] == 0
    assert values['bert_model_ready{model="n"}'] == 1
    assert values['process_cpu_seconds_total{process="worker-0"}'] > 0
    assert 'process="worker-1"' not in text


def test_the_memory_of_a_gpu_is_read_at_the_scrape() -> None:
    metrics, memory = Metrics(), [(1, 9), (2, 9), None]
    batcher = Batcher(run=FakeRunner().run, queue=make_queue(token_budget=8, max_tokens=20))
    metrics.observe_queue({"": batcher}, "CUDA", degraded=False, device_memory=lambda: memory.pop(0))
    used = [render_metrics(metrics)["bert_device_memory_used_bytes"] for _ in range(2)]
    assert used == [1, 2]
    assert math.isnan(render_metrics(metrics)["bert_device_memory_used_bytes"])


def test_what_is_tokenized_is_shown_as_it_is_now() -> None:
    metrics = Metrics()
    for requests, characters in ((0, 0), (2, 5000), (1, 40)):
        metrics.tokenizing(requests, characters)
        values = render_metrics(metrics)
        assert (values["bert_tokenizing_requests"], values["bert_tokenizing_characters"]) == (requests, characters)


@played
async def test_waiting_tokens_include_those_expected_from_tokenizing(time: FakeTime) -> None:
    batcher, metrics = Batcher(run=FakeRunner().run, queue=make_queue(), clock=time.clock), Metrics()
    metrics.observe_queue({"": batcher}, "CPU", degraded=False)
    request = batcher.admit(300, 3, timeout_seconds=1000.0)
    batcher.send(request, Chunk([sequence(1)], left=200))
    values = render_metrics(metrics)
    assert (values["bert_waiting_tokens"], values["bert_inflight_requests"]) == (204, 1)
    assert values["bert_wait_seconds_estimated"] > 0
    batcher.leave(request)
