"""Every number and name the encoder needs, resolved: nothing optional, no default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    family: str
    vocabulary: int
    hidden: int
    embedding: int  # width of the embedding tables; differs from hidden where they are factorized
    layers: int
    heads: int
    intermediate: int
    activation: str  # "gelu" (erf), "gelu_tanh", "relu"
    norm_epsilon: float
    positions: int  # usable positions: the table less the rows below position_offset
    position_offset: int  # row of the position table that the first token takes
    segments: int  # rows of the segment table; 0 where there is none
    task_types: int  # rows of the task type table (ERNIE); 0 where there is none

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads
