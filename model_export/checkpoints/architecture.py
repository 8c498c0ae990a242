"""The numbers that define an encoder, all resolved: nothing is optional, nothing has a default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes of a post-norm BERT encoder (Devlin et al. 2018)."""

    family: str
    vocabulary: int
    hidden: int
    embedding: int  # width of the embedding tables; differs from hidden where they are factorized
    layers: int
    heads: int
    intermediate: int
    activation: str  # "gelu" (erf), "gelu_tanh", "relu"
    norm_epsilon: float
    positions: int  # usable positions: the table without the rows below position_offset
    position_offset: int  # row of the position table for the first token
    segments: int  # rows of the segment table; 0 without one
    task_types: int  # rows of the task type table (ERNIE); 0 without one

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads
