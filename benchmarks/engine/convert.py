"""`python -m benchmarks.engine.convert CHECKPOINT FOLDER`: the contenders' models of one checkpoint.

Runs in the contenders' environment. FOLDER already holds RAGGED, our fp32 graph with one output, and
`calibration.json`, a list of token id lists. What is there already is kept.
"""

import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
from transformers import AutoModel

from benchmarks.engine.contenders import RAGGED
from benchmarks.engine.engines import INPUTS, pad

HIDDEN = "last_hidden_state"
PADDED, FUSED, FUSED_INT8 = "padded.onnx", "fused.onnx", "fused-int8.onnx"
CTRANSLATE2, STATIC_INT8, WEIGHTS_INT8 = "ctranslate2", "static-int8/model.xml", "weights-int8/model.xml"
PADDED_WEIGHTS_INT8 = "padded-weights-int8/model.xml"
CHECKPOINT = "checkpoint"


def convert(checkpoint: Path, folder: Path) -> None:
    """Writes every contender's model of `checkpoint` into `folder`."""
    config = json.loads((checkpoint / "config.json").read_text())
    steps: dict[str, Callable[[Path], object]] = {
        PADDED: lambda path: export_padded(checkpoint, path),
        FUSED: lambda path: write_fused(folder / PADDED, path, config),
        FUSED_INT8: lambda path: write_fused_int8(folder / FUSED, path),
        CTRANSLATE2: lambda path: write_ctranslate2(checkpoint, path),
        WEIGHTS_INT8: lambda path: write_weights_int8(folder / RAGGED, path),
        PADDED_WEIGHTS_INT8: lambda path: write_weights_int8(folder / PADDED, path),
        STATIC_INT8: lambda path: write_static_int8(folder, path),
    }
    for name, write in steps.items():
        if not (folder / name).exists():
            print(f"{folder.name}: {name}", flush=True)
            shutil.rmtree(folder / "unfinished", ignore_errors=True)
            unfinished = folder / "unfinished" / name
            unfinished.parent.mkdir(parents=True)
            write(unfinished)
            top = Path(name).parts[0]
            shutil.rmtree(folder / top, ignore_errors=True)
            (folder / "unfinished" / top).rename(folder / top)
    shutil.rmtree(folder / "unfinished", ignore_errors=True)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    (folder / CHECKPOINT).symlink_to(checkpoint.absolute())


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


def write_fused_int8(fused: Path, path: Path) -> None:
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # of fused operators, whose types onnx cannot infer
    quantize_dynamic(fused, path, per_channel=True, weight_type=QuantType.QInt8, extra_options=types)


def write_ctranslate2(checkpoint: Path, path: Path) -> None:
    """CTranslate2's model in fp32; int8 is what it is loaded as.

    Its converter reads a field of the config that transformers 5 no longer adds.
    """
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory() as name:
        for file in checkpoint.iterdir():
            (Path(name) / file.name).symlink_to(file.absolute())
        config = json.loads((checkpoint / "config.json").read_text()) | {"position_embedding_type": "absolute"}
        (Path(name) / "config.json").unlink()
        (Path(name) / "config.json").write_text(json.dumps(config))
        TransformersConverter(name).convert(str(path))


def write_weights_int8(model: Path, path: Path) -> None:
    """`model` with weights in int8, one scale for each output channel (NNCF); runs quantize activations."""
    import nncf
    import openvino

    read = openvino.Core().read_model(model)
    openvino.save_model(
        nncf.compress_weights(read, mode=nncf.CompressWeightsMode.INT8_SYM), path, compress_to_fp16=False
    )


def write_static_int8(folder: Path, path: Path) -> None:
    """The padded graph with weights and activations in int8, ranges from the calibration texts (NNCF)."""
    import nncf
    import openvino

    texts = [np.array(ids, np.int32) for ids in json.loads((folder / "calibration.json").read_text())]
    read = openvino.Core().read_model(folder / PADDED)
    dataset = nncf.Dataset([pad([ids]) for ids in texts])
    quantized = nncf.quantize(
        read, dataset, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts), fast_bias_correction=True
    )
    openvino.save_model(quantized, path, compress_to_fp16=False)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
