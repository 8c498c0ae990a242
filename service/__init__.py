"""Serves an exported BERT over REST: requests of all tasks share one queue, one graph and one batch, without padding."""

import os

# Read when ONNX Runtime is imported: without it, its Linux builds report every session to its maker.
os.putenv("ORT_DISABLE_TELEMETRY", "1")
