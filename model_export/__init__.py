"""Converts a trained BERT checkpoint to an artifact: an ONNX graph with fused operators, its tokenizer, a manifest."""

import os

# read when ONNX Runtime is imported, which otherwise reports every session to its vendor
os.putenv("ORT_DISABLE_TELEMETRY", "1")
