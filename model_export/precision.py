"""What `--precision` chooses: the products of the encoder by device, the vocabulary's, what they count from, and the dtype of the rest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model_export.centres import Centred, Uncentred
from model_export.linear import Float32, Fused, Int8ByRow, Linear
from model_export.scores import Full, LikelyInFull


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    linear: Mapping[str, Callable[[], Linear]]  # by device: those that have the kernels
    scores: type[Full] | type[LikelyInFull]
    centres: type[Centred] | type[Uncentred]
    computes: str  # dtype of the other weights and activations

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.linear)


PRECISIONS = {
    "fp32": Precision(linear={"cpu": Float32, "cuda": Fused}, scores=Full, centres=Uncentred, computes="float32"),
    "fp16": Precision(linear={"cuda": Fused}, scores=Full, centres=Uncentred, computes="float16"),
    "int8": Precision(linear={"cpu": Int8ByRow}, scores=LikelyInFull, centres=Centred, computes="float32"),
}
