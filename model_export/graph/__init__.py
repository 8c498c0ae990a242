"""Builds the ONNX graph."""
