"""The session of an artifact in bf16: its encoder in OpenVINO, its heads in ONNX Runtime."""
