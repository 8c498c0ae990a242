"""Turns a trained BERT checkpoint into an artifact: an ONNX graph with fused operators, its tokenizer and a manifest."""
