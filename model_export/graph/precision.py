"""The parts that `--precision` selects: linear layers by device, masked-LM head, channel shift, and the dtype."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from model_export.graph.attention import Attention, FusedPackedRows, PackedRows
from model_export.graph.channel_shift import ChannelShift, NoShift
from model_export.graph.cuda_attention import CumulativeLengths
from model_export.graph.heads.lm_head import ExactLogits, Int8Shortlist
from model_export.graph.linear import CpuLinear, CudaLinear, Int8PerTokenLinear, Linear

ATTENTION: Mapping[str, type[Attention]] = {"cpu": PackedRows, "cuda": CumulativeLengths}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    linear: Mapping[str, Callable[[], Linear]]  # by device: only those that have the kernels
    lm_head: type[ExactLogits] | type[Int8Shortlist]
    shift: type[ChannelShift] | type[NoShift]
    dtype: str  # of weights and activations, but for int8 products
    attention: Mapping[str, type[Attention]] = field(default_factory=lambda: ATTENTION)  # by device

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.linear)


PRECISIONS = {
    "fp32": Precision(
        linear={"cpu": CpuLinear, "cuda": CudaLinear}, lm_head=ExactLogits, shift=NoShift, dtype="float32"
    ),
    "fp16": Precision(linear={"cuda": CudaLinear}, lm_head=ExactLogits, shift=NoShift, dtype="float16"),
    "int8": Precision(
        linear={"cpu": Int8PerTokenLinear},
        lm_head=Int8Shortlist,
        shift=ChannelShift,
        dtype="float32",
        attention={"cpu": FusedPackedRows},
    ),
}
