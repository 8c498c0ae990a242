"""Padded batches with the same weights: `transformers` on torch, and its export, fused by ONNX Runtime's optimizer.

Needs torch, transformers and onnx (requirements.txt).
"""

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
from transformers import AutoModel

from model_export.artifact.batch import Tokens

INPUTS = ("input_ids", "token_type_ids", "attention_mask")
HIDDEN = "last_hidden_state"


def pad(sequences: Sequence[Tokens]) -> dict[str, NDArray[np.int64]]:
    """A padded batch: arrays [sequences, longest] by input name."""
    longest = max(map(len, sequences))
    batch = {name: np.zeros((len(sequences), longest), np.int64) for name in INPUTS}
    for i, tokens in enumerate(sequences):
        batch["input_ids"][i, : len(tokens)] = tokens.ids
        batch["attention_mask"][i, : len(tokens)] = 1
    return batch


class TorchPadded:
    """BertModel with torch's own fused attention."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = AutoModel.from_pretrained(checkpoint, attn_implementation="sdpa").eval()

    def __call__(self, batch: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        with torch.inference_mode():
            hidden: NDArray[np.float32] = self.model(
                **{name: torch.from_numpy(array) for name, array in batch.items()}
            ).last_hidden_state.numpy()
        return hidden


class FusedPadded:
    """The padded graph, after ONNX Runtime's optimizer."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        # spinning ends with the run, so that the next contender has the cores
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with tempfile.TemporaryDirectory() as folder:
            path, fused = Path(folder) / "padded.onnx", Path(folder) / "fused.onnx"
            export_padded(checkpoint, path)
            write_fused(path, fused, json.loads((checkpoint / "config.json").read_text()))
            self.session = ort.InferenceSession(fused, options, providers=["CPUExecutionProvider"])

    def __call__(self, batch: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        feeds = {
            i.name: batch[i.name].astype(np.int32 if "int32" in i.type else np.int64) for i in self.session.get_inputs()
        }
        hidden: NDArray[np.float32] = self.session.run(None, feeds)[0]
        return hidden


class _LastHidden(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
        return self.model(
            input_ids=input_ids, token_type_ids=token_type_ids, attention_mask=attention_mask
        ).last_hidden_state


def export_padded(checkpoint: Path, path: Path) -> None:
    """Writes the graph [batch, sequence] -> last hidden states.

    Uses torch's older exporter: ONNX Runtime's optimizer does not fuse the graph of the newer one.
    """
    model = AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()
    example = tuple(torch.ones((2, 8), dtype=torch.int64) for _ in INPUTS)
    axes = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS, HIDDEN)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _LastHidden(model),
            example,
            str(path),
            input_names=list(INPUTS),
            output_names=[HIDDEN],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


def write_fused(padded: Path, path: Path, config: dict[str, int]) -> None:
    """Writes `padded` as ONNX Runtime's optimizer leaves it; raises SystemExit if it did not fuse all layers."""
    heads, hidden, layers = (config[key] for key in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    graph = optimize_model(
        str(padded),
        "bert",
        num_heads=heads,
        hidden_size=hidden,
        opt_level=0,
        optimization_options=FusionOptions("bert"),
    )
    operators = graph.get_fused_operator_statistics()
    wanted = {
        "Attention": layers,
        "EmbedLayerNormalization": 1,
        "SkipLayerNormalization": 2 * layers,
        "BiasGelu": layers,
    }
    found = {name: operators.get(name, 0) for name in wanted}
    if found != wanted:
        raise SystemExit(
            f"the optimizer fused {found} in the padded graph, expected {wanted}; the comparison would be unfair to it"
        )
    graph.save_model_to_file(str(path), use_external_data_format=False)
