"""The contenders by name: the engine, its model of those that `convert` writes, and its options.

Needs none of the engines' packages. A name ends with the precision; `padded` is one batch as the texts come, `buckets`
are sorted batches of padded texts, `ragged` is our own graph without padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

ENGINES = "benchmarks.engine.contenders.engines"
ONNX_RUNTIME, OPENVINO = f"{ENGINES}.onnx_runtime:OnnxRuntime", f"{ENGINES}.openvino:OpenVino"
CTRANSLATE2, TORCH = f"{ENGINES}.ctranslate2:CTranslate2", f"{ENGINES}.torch:Torch"


@dataclass(frozen=True, slots=True)
class Contender:
    engine: str  # module:class
    model: str  # file or folder, in the folder of the models
    options: Mapping[str, str] = field(default_factory=dict)
    plain: bool = False  # one padded batch in the order of the texts; else the best of the sorted arrangements


RAGGED = "ragged/cpu/vectors.onnx"
F32, BF16 = {"INFERENCE_PRECISION_HINT": "f32"}, {"INFERENCE_PRECISION_HINT": "bf16"}
# OpenVINO quantizes activations only beside f32, and only in groups that divide the width of the product
DYNAMIC = F32 | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "128"}
CONTENDERS = {
    "ONNX Runtime padded fp32": Contender(ONNX_RUNTIME, "fused.onnx", plain=True),
    "ONNX Runtime buckets fp32": Contender(ONNX_RUNTIME, "fused.onnx"),
    "torch padded fp32": Contender(TORCH, "checkpoint", {"dtype": "float32"}, plain=True),
    "CTranslate2 buckets fp32": Contender(CTRANSLATE2, "ctranslate2", {"compute_type": "float32"}),
    "OpenVINO ragged fp32": Contender(OPENVINO, RAGGED, F32),
    "OpenVINO padded bf16": Contender(OPENVINO, "padded.onnx", BF16, plain=True),
    "OpenVINO buckets bf16": Contender(OPENVINO, "padded.onnx", BF16),
    "OpenVINO ragged bf16": Contender(OPENVINO, RAGGED, BF16),
    "ONNX Runtime padded int8": Contender(ONNX_RUNTIME, "fused-int8.onnx", plain=True),
    "ONNX Runtime buckets int8": Contender(ONNX_RUNTIME, "fused-int8.onnx"),
    "CTranslate2 buckets int8": Contender(CTRANSLATE2, "ctranslate2", {"compute_type": "int8"}),
    "OpenVINO buckets int8": Contender(OPENVINO, "padded-weights-int8/model.xml", DYNAMIC),
    "OpenVINO ragged int8": Contender(OPENVINO, "weights-int8/model.xml", DYNAMIC),
    "OpenVINO ragged weights int8": Contender(OPENVINO, "weights-int8/model.xml"),
    "OpenVINO static int8": Contender(OPENVINO, "static-int8/model.xml"),
}
