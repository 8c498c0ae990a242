"""Serves an exported BERT over REST: the requests of all tasks share one queue and one graph, without padding."""

import os

# Read when ONNX Runtime is imported: without it, its Linux builds report every session to its maker.
os.putenv("ORT_DISABLE_TELEMETRY", "1")
