"""Turns a trained BERT checkpoint into an artifact: an ONNX graph with fused operators, its tokenizer and a manifest."""

import os

# Read when ONNX Runtime is imported: without it, its Linux builds report every session to its maker.
os.putenv("ORT_DISABLE_TELEMETRY", "1")
