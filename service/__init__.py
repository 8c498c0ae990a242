"""Serves an exported BERT over REST: requests of all tasks share one queue, one graph and one batch, without padding."""

import os

os.putenv(
    "ORT_DISABLE_TELEMETRY", "1"
)  # read when ONNX Runtime is imported, which otherwise reports every session to its maker
