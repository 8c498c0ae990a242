"""Converts a trained BERT checkpoint to an artifact: an ONNX graph with fused operators, its tokenizer, a manifest."""
