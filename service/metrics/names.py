"""The values of labels, all from fixed sets, and the buckets of histograms."""

TASKS = (
    *("embed", "fill_mask", "nsp", "predict", "tag", "answer", "choose", "similarity", "rerank", "root"),
    *("embeddings", "classify", "score", "pooling", "infer", "tokenize", "decode", "embed_all", "embed_sparse"),
    "attention",
)
UNKNOWN = "unknown"  # the task of a request that was refused before its path was read, or whose path has none
MISDIRECTED = {404: "not_found", 405: "method_not_allowed"}  # reasons of the responses that no route gave
REASONS = (
    "overloaded",
    "buffers_full",
    "deadline_too_short",
    "too_large",
    "too_much_for_deadline",
    "invalid",
    "unavailable",
    "deadline",
    "unauthorized",
    "bad_request",
    "unsupported",
    "no_such_head",
    "not_found",
    "method_not_allowed",
    "run_failed",
    "not_finite",
    "out_of_memory",
    "tokenizer_failed",
    "internal",
    "client_closed",
    "slow",
    "headers_too_large",
    "malformed",
    "connections_full",
)
OUTCOMES = {  # of requests without 200, by reason; "refused" is that of all other reasons
    "deadline": "expired",
    "client_closed": "cancelled",
    "run_failed": "failed",
    "not_finite": "failed",
    "out_of_memory": "failed",
    "tokenizer_failed": "failed",
    "internal": "failed",
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
