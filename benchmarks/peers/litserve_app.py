"""`python litserve_app.py MODEL PORT`: LitServe with the usual handler, around the padded ONNX graph of MODEL.

Runs in the environment of litserve.txt, so it imports nothing of this project.
"""

import sys
from typing import Any

import litserve
import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer


class Embed(litserve.LitAPI):
    def setup(self, device: str) -> None:  # noqa: ARG002
        self.session = ort.InferenceSession(f"{sys.argv[1]}/fused.graph", providers=["CPUExecutionProvider"])
        self.dtypes = {one.name: np.int32 if "int32" in one.type else np.int64 for one in self.session.get_inputs()}
        self.tokenizer = Tokenizer.from_file(f"{sys.argv[1]}/tokenizer.json")
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(512)

    def decode_request(self, request: dict[str, str]) -> str:
        return request["input"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, x: list[str]) -> Any:
        """[texts, hidden]: the mean over the tokens, to unit length."""
        encoded = self.tokenizer.encode_batch(x)
        arrays = {
            "input_ids": [one.ids for one in encoded],
            "token_type_ids": [one.type_ids for one in encoded],
            "attention_mask": [one.attention_mask for one in encoded],
        }
        hidden = self.session.run(None, {name: np.array(arrays[name], dtype) for name, dtype in self.dtypes.items()})[0]
        mask = np.array(arrays["attention_mask"], np.float32)[:, :, None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def unbatch(self, output: Any) -> list[Any]:
        return list(output)

    def encode_response(self, output: Any) -> dict[str, list[float]]:
        return {"embedding": output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(Embed(max_batch_size=8, batch_timeout=0.005), accelerator="cpu", timeout=False)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", generate_client_file=False)
