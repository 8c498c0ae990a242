"""What `--precision` chooses: the products of the encoder by device, the vocabulary's, what they count from, and the dtype of the rest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model_export.graph.channel_shift import ChannelShift, NoShift
from model_export.graph.linear import CpuLinear, CudaLinear, Int8PerTokenLinear, Linear
from model_export.graph.lm_head import ExactLogits, Int8Shortlist


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    linear: Mapping[str, Callable[[], Linear]]  # by device: those that have the kernels
    scores: type[ExactLogits] | type[Int8Shortlist]
    centres: type[ChannelShift] | type[NoShift]
    computes: str  # dtype of the other weights and activations

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.linear)


PRECISIONS = {
    "fp32": Precision(
        linear={"cpu": CpuLinear, "cuda": CudaLinear}, scores=ExactLogits, centres=NoShift, computes="float32"
    ),
    "fp16": Precision(linear={"cuda": CudaLinear}, scores=ExactLogits, centres=NoShift, computes="float16"),
    "int8": Precision(
        linear={"cpu": Int8PerTokenLinear}, scores=Int8Shortlist, centres=ChannelShift, computes="float32"
    ),
}
