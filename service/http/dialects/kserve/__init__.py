"""KServe's Open Inference Protocol, version 2, over HTTP, with Triton's extension for binary tensors."""
