"""The keyword arguments of `Engine.from_artifact` and of its tasks, by their types. Values are checked where they are
used: options of the engine as settings, options of a task as fields of its request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypedDict

from service.settings import PREFIX, Settings
from service.tokenization.encoding import Direction


class EngineOptions(TypedDict, total=False):
    """Settings of the same names (README); what is left out or None has the setting's default."""

    device: Literal["auto", "cpu", "cuda"]
    cuda_attention: Literal["auto", "packed", "plain"]
    threads: int  # of one run; 0: one per available core
    token_budget: int  # tokens in one batch; 0: measured when the engine opens
    share_weights: bool
    max_waiting_tokens: int  # in the queue; a request beyond it raises Overloaded
    max_wait_seconds: float
    max_inputs: int  # of one call; the bulk methods split by themselves
    max_characters: int
    max_top_k: int
    pooling: Literal["cls", "mean", "pooler", "sentence"] | None
    normalize: bool | None
    rerank: Literal["cosine"] | None
    truncate: bool
    timeout_ms: int  # deadline of a call without timeout_seconds
    run_timeout_seconds: float
    self_check_seconds: float


LayerPooling = Literal["concat", "mean", "sum"] | list[float]


class CallOptions(TypedDict, total=False):
    timeout_seconds: float  # until the answer; DeadlineExceeded after it


class TruncationOptions(CallOptions, total=False):
    truncate: bool | None
    truncation_direction: Direction


class EmbedOptions(TruncationOptions, total=False):
    """Fields of /embed."""

    pooling: Literal["cls", "mean", "pooler", "sentence"] | None
    normalize: bool | None
    dimensions: int | None
    layers: list[int] | None  # without layer_pooling the array is [texts, layers, dimensions]
    layer_pooling: LayerPooling | None
    prompt: str | None
    prompt_name: str | None


class TokenVectorOptions(TruncationOptions, total=False):
    """Fields of /embed with `pooling: "none"`."""

    normalize: bool | None
    dimensions: int | None
    layers: list[int] | None  # without layer_pooling the arrays are [layers, tokens, dimensions]
    layer_pooling: LayerPooling | None
    words: bool  # [words, dimensions]
    prompt: str | None
    prompt_name: str | None


class SparseOptions(TruncationOptions, total=False):
    """Fields of /embed_sparse."""

    prompt_name: str | None
    force: bool


class FillMaskOptions(TruncationOptions, total=False):
    """Fields of /fill-mask."""

    top_k: int | None
    targets: list[str] | None
    first_piece: bool | None


class PredictOptions(TruncationOptions, total=False):
    """Fields of /predict."""

    top_k: int | None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None
    raw_scores: bool


class TagOptions(TruncationOptions, total=False):
    """Fields of /tag."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None
    ignore_labels: list[str] | None
    stride: int | None


class RerankOptions(TruncationOptions, total=False):
    """Fields of /rerank with `texts`."""

    raw_scores: bool
    return_text: bool | None


def make_settings(artifact: Path | str, options: Mapping[str, object]) -> Settings:
    """The settings of an engine: those of its options, none of the environment. Raises SettingsError."""
    given = {"artifact": str(artifact), **{name: value for name, value in options.items() if value is not None}}
    return Settings.from_environment({PREFIX + name.upper(): str(value) for name, value in given.items()})
