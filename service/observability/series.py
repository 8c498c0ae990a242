"""The table of all series that requests and runs change: names, labels, buckets and descriptions."""

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

UNKNOWN = "unknown"  # the task of a request that was refused before its path was read, or whose path has none
MISDIRECTED = {404: "not_found", 405: "method_not_allowed"}  # reasons of the responses that no route gave
REASONS = (
    *("overloaded", "buffers_full", "deadline_too_short", "too_large", "too_much_for_deadline", "invalid"),
    *("unavailable", "deadline", "unauthorized", "bad_request", "unsupported", "no_such_head", "not_found"),
    *("method_not_allowed", "run_failed", "not_finite", "out_of_memory", "tokenizer_failed", "internal"),
    *("client_closed", "slow", "headers_too_large", "malformed", "connections_full", "worker_ended"),
)
OUTCOMES = {  # of requests without 200, by reason; "refused" is that of all other reasons
    "deadline": "expired",
    "client_closed": "cancelled",
    **dict.fromkeys(("run_failed", "not_finite", "out_of_memory", "tokenizer_failed", "internal"), "failed"),
}
STAGES = ("tokenize", "queue", "forward", "format")

# Measured on 2 cores (benchmarks/results/server-*.json): the median of a single text takes 2.3 ms (sample) to 25 ms
# (BERT-base fp32), p99.9 under load up to 0.23 s; tokenizing 0.07 to 0.3 ms. Under overload, BERT_MAX_WAIT_SECONDS.
LOAD_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
REQUEST_SECONDS = (*LOAD_SECONDS, 1, 2, 5, 10, 20, 30, 60)
STAGE_SECONDS = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
)
RUN_SECONDS = (*LOAD_SECONDS, 1, 2, 5, 10, 30, 60)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
REQUEST_TOKENS = (4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192, 32768, 131072)
REQUEST_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
REQUEST_BYTES = (64, 256, 1024, 4096, 16384, 65536, 2**18, 2**20, 2**22, 2**24, 2**26)
COSINES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)

COUNTER, GAUGE, HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
Kind = type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
Labels = tuple[str, ...]  # values


class Series(NamedTuple):
    """A row of the table: without labels, or with a series for each of their values."""

    kind: Kind
    name: str
    text: str
    labels: Labels = ()  # names
    known: Sequence[Labels] = ((),)  # the values that are scraped from the start
    bounds: Sequence[float] = ()  # of a histogram's buckets
    largest: bool = False  # of several processes the largest counts, not the sum

    @property
    def size(self) -> int:
        """Numbers for each of its labels' values: a histogram has its buckets, what is above, and the sum."""
        return len(self.bounds) + 2 if self.bounds else 1


IN_FLIGHT = Series(
    GAUGE,
    "bert_inflight_http_requests",
    "Task requests whose body is being received, or whose response is being made and sent",
    ("stage",),
    (("receive",), ("process",)),
)
RECEIVE, PROCESS = 0, 1  # the cells of IN_FLIGHT, which are the first
about = "Requests with 200: from the last byte of the body received to the response"
SECONDS = Series(HISTOGRAM, "bert_request_seconds", about, ("task",), (), REQUEST_SECONDS)
about = (
    "Task requests without 200, by how they ended: from the last byte of the body, or from the head where the body was "
    "not read, to the response"
)
ends = [(outcome,) for outcome in dict.fromkeys(("refused", *OUTCOMES.values()))]
ERROR_SECONDS = Series(HISTOGRAM, "bert_error_seconds", about, ("outcome",), ends, REQUEST_SECONDS)
about = "Requests with 200, by stage: tokenizing, waiting in the queue, runs of the model, formatting the response"
STAGE = Series(HISTOGRAM, "bert_stage_seconds", about, ("stage",), [(stage,) for stage in STAGES], STAGE_SECONDS)
TOKENS = Series(HISTOGRAM, "bert_request_tokens", "Tokens in a request with 200", bounds=REQUEST_TOKENS)
TEXTS = Series(HISTOGRAM, "bert_request_texts", "Texts, pairs, windows or passes in a 200", bounds=REQUEST_TEXTS)
BODY_BYTES = Series(HISTOGRAM, "bert_request_bytes", "Decoded body of a request with 200", bounds=REQUEST_BYTES)
RESPONSE_BYTES = Series(HISTOGRAM, "bert_response_bytes", "Body of a response with 200", bounds=REQUEST_BYTES)

about = "Responses to requests of tasks, and 404 and 405; 499: the client left first"
REQUESTS = Series(
    COUNTER, "bert_requests", about, ("task", "status"), [(UNKNOWN, str(status)) for status in MISDIRECTED]
)
about = "Responses of routes that run no model"
OPERATIONAL = Series(COUNTER, "bert_operational_requests", about, ("path", "status"), ())
about = "Responses of bert_requests_total without 200, by reason"
ERRORS = Series(COUNTER, "bert_errors", about, ("reason",), [(reason,) for reason in REASONS])
TRUNCATED = Series(COUNTER, "bert_truncated_inputs", "Inputs that were truncated")
RUN_TOKENS = Series(COUNTER, "bert_tokens", "Tokens that the model computed; none of them is padding")
SLOTS = Series(COUNTER, "bert_attention_slots", "Slots of attention rows; bert_tokens_total / this is the fill")
BATCH_TOKENS = Series(HISTOGRAM, "bert_batch_tokens", "Tokens in a batch", bounds=BATCH_SIZES)
BATCH_SEQUENCES = Series(HISTOGRAM, "bert_batch_sequences", "Sequences in a batch", bounds=BATCH_SIZES)
FORWARD = Series(HISTOGRAM, "bert_forward_seconds", "Duration of one run of the model", bounds=RUN_SECONDS)
WAIT = Series(HISTOGRAM, "bert_queue_seconds", "Longest wait of a request in a batch", bounds=RUN_SECONDS)
CANARY = Series(HISTOGRAM, "bert_canary_seconds", "Duration of a self-check's run", bounds=RUN_SECONDS)
about = "Shares of another model's requests: answered or left by `model`; repeated: compared, dropped, failed"
SHARED = Series(COUNTER, "bert_shared_requests", about, ("model", "outcome"), ())
about = "Cosine of each vector of a compared request to that of the answer; below 0 counts as 0"
COSINE = Series(HISTOGRAM, "bert_shadow_cosine", about, ("model",), (), COSINES)
about = "First candidates and labels of compared requests; true: as in the answer"
FIRST = Series(COUNTER, "bert_shadow_first_candidates", about, ("model", "agrees"), ())
about = "Tokenizing, queue and runs of compared requests, by the model that answered and by its shadow"
SHADOW_SECONDS = Series(HISTOGRAM, "bert_shadow_seconds", about, ("model", "by"), (), REQUEST_SECONDS)
about = "1 for the execution provider in use"
PROVIDER = Series(GAUGE, "bert_execution_provider", about, ("provider",), (), largest=True)
about = "1 where the CPU is used although there is an artifact for CUDA"
DEGRADED = Series(GAUGE, "bert_degraded", about, largest=True)
about = "1 while the model is in memory, 0 after it was put out"
IN_MEMORY = Series(GAUGE, "bert_model_in_memory", about, ("model",), (), largest=True)
about = "Loading a model: at the start with its self-test and measurements, later when it was put out of memory"
LOAD = Series(HISTOGRAM, "bert_load_seconds", about, ("model",), (), RUN_SECONDS)
about = "Swaps of a model by how they ended: swapped, unchanged, refused"
SWAPS = Series(COUNTER, "bert_swaps", about, ("model", "outcome"), ())
TOKENIZING_REQUESTS = Series(GAUGE, "bert_tokenizing_requests", "Requests that are tokenized or wait for it")
about = "Characters of requests that are not tokenized yet"
TOKENIZING_CHARACTERS = Series(GAUGE, "bert_tokenizing_characters", about)

about = "Requests of clients by how they ended; received = the others + bert_inflight_requests"
QUEUE_REQUESTS = Series(COUNTER, "bert_queue_requests", about, ("outcome",), ())
about = "Self-checks by how they ended; no request of a client"
CANARY_REQUESTS = Series(COUNTER, "bert_canary_requests", about, ("outcome",), ())
about = "bert_queue_requests by model, where there are several"
MODEL_REQUESTS = Series(COUNTER, "bert_model_requests", about, ("model", "outcome"), ())
FAILED_RUNS = Series(COUNTER, "bert_failed_runs", "Runs that raised or gave no finite answer", known=())
about = "Failed runs whose memory could not be allocated; each lowers the token budget"
OUT_OF_MEMORY_RUNS = Series(COUNTER, "bert_out_of_memory_runs", about, known=())
QUEUE_COUNTERS = (QUEUE_REQUESTS, CANARY_REQUESTS, MODEL_REQUESTS, FAILED_RUNS, OUT_OF_MEMORY_RUNS)
INFLIGHT = Series(GAUGE, "bert_inflight_requests", "Requests of clients that wait or run", known=())
about = "Requests of clients with at least one queued sequence"
WAITING = Series(GAUGE, "bert_waiting_requests", about, known=())
RUNNING = Series(GAUGE, "bert_running_requests", "Requests of clients that are wholly in runs", known=())
about = "Tokens in the queue, with those expected from tokenizing"
WAITING_TOKENS = Series(GAUGE, "bert_waiting_tokens", about, known=())
about = "How long the oldest queued request has waited"
OLDEST_WAIT = Series(GAUGE, "bert_oldest_wait_seconds", about, known=(), largest=True)
about = "Estimated time until all that is queued has been dispatched"
WAIT_ESTIMATED = Series(GAUGE, "bert_wait_seconds_estimated", about, known=(), largest=True)
about = "Tokens in one batch: measured at start, lowered when memory runs out"
TOKEN_BUDGET = Series(GAUGE, "bert_token_budget", about, known=(), largest=True)
about = "Share of the device (per-core sessions, or the whole) that runs used in the last 15 s or so"
BUSY = Series(GAUGE, "bert_busy_ratio", about, known=())
RATE = Series(GAUGE, "bert_tokens_per_second", "Measured rate of full batches", known=())
about = "Memory of the GPU that is in use, by any process"
DEVICE_MEMORY_USED = Series(GAUGE, "bert_device_memory_used_bytes", about, known=(), largest=True)
DEVICE_MEMORY = Series(GAUGE, "bert_device_memory_bytes", "Memory of the GPU", known=(), largest=True)

# by name, in the order of a scrape
TABLE = {series.name: series for series in tuple(globals().values()) if isinstance(series, Series)}
