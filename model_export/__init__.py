"""Turns a trained BERT checkpoint into an artifact: an ONNX graph with fused operators, its tokenizer and a manifest."""

import os

os.putenv(
    "ORT_DISABLE_TELEMETRY", "1"
)  # read when ONNX Runtime is imported, which otherwise reports every session to its maker
