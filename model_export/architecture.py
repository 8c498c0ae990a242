"""The architecture of an encoder, and what a config says of the positions in its attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ExportError

Config = Mapping[str, Any]
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "geglu": "gelu",  # this and "reglu": a gated feed-forward with it
    "reglu": "relu",
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",  # the published name of a gated feed-forward with it
}
MAX_POSITIONS = 2**16  # if no table of positions bounds them
CONVOLUTION_WIDTH = 3  # tokens that DeBERTa's convolution reads
GLOBAL, LOCAL = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """How the attention of a layer knows positions (Su et al. 2021), and how far it sees."""

    theta: float
    divisor: float = 1.0  # of all frequencies; 1 unless they are scaled
    window: int = 0  # tokens to each side that a query attends to; 0: all
    is_stored: bool = False  # by a stored table of sines and cosines, neighbouring channels together (RoFormer)
    turns_values: bool = False  # and not only queries and keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativePositions:
    """What DeBERTa-v2 and v3 set of disentangled attention (He et al. 2021) and of the convolution beside layer 0.

    The defaults are those of a family without them.
    """

    terms: frozenset[str] = frozenset()  # "c2p" (content to position), "p2c" (position to content)
    shares_projections: bool = False  # positions are projected by the weights of the contents
    is_normed: bool = False  # the table of positions has a LayerNorm
    buckets: int = 0  # of distances to one side; 0: a bucket for each distance
    longest: int = 0  # the distance from which on all are one bucket
    convolution: str = ""  # its activation; "" without a convolution

    @property
    def span(self) -> int:
        """Rows of the table of positions to one side."""
        return self.buckets or self.longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes and the kind of a BERT encoder (Devlin et al. 2018)."""

    family: str
    vocabulary: int
    hidden: int
    embedding: int  # width of the embedding tables; differs from hidden if they are factorized
    layers: int
    heads: int
    intermediate: int
    activation: str  # "gelu" (erf), "gelu_tanh", "relu", "silu"
    norm_epsilon: float
    positions: int  # usable positions: the table without the rows below position_offset
    position_offset: int  # row of the position table for the first token
    segments: int  # rows of the segment table; 0 without it
    task_types: int  # rows of the task type table (ERNIE); 0 without it
    # how attention knows positions: "" (not at all), "relative" and "alibi" (biases), "disentangled", "rotary"
    positional: str
    rotary: tuple[Rotary, ...]  # of each layer; empty without
    norms: str  # of a layer: "after" or "before" attention and feed-forward, "twice" (after, attention's two)
    is_gated: bool  # the feed-forward's activations are multiplied by another product of its input
    relative: RelativePositions  # of disentangled attention

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def windows(self) -> tuple[int, ...]:
        """Of each layer: tokens to each side that a query attends to; 0: all."""
        return tuple(one.window for one in self.rotary) or (0,) * self.layers

    @property
    def is_prenorm(self) -> bool:
        return self.norms == "before"


def int_setting(config: Config, key: str, default: int, *, least: int = 0) -> int:
    """An integer of the config, `default` without the key. Raises ExportError unless it is at least `least`."""
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ExportError(f"config.json sets {key} to {value!r}; it must be an integer of at least {least}")
    return value


def activation_setting(key: str, stated: Any) -> str:
    """A value of ACTIVATIONS. Raises ExportError if the config states another activation."""
    if not isinstance(stated, str) or stated not in ACTIVATIONS:
        raise ExportError(f"config.json sets {key} to {stated!r}; supported are {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[stated]


def modernbert_rotary(config: Config, layers: int) -> tuple[Rotary, ...]:
    """Reads layer_types or global_attn_every_n_layers, and rope_parameters (transformers 5) or the older keys."""
    every = int_setting(config, "global_attn_every_n_layers", 3, least=1)
    kinds = config.get("layer_types") or [LOCAL if i % every else GLOBAL for i in range(layers)]
    window = int_setting(config, "local_attention", 128, least=2) // 2
    stated = _section(config, "rope_parameters")
    older = {GLOBAL: config.get("global_rope_theta", 160_000.0), LOCAL: config.get("local_rope_theta", 10_000.0)}
    thetas = {kind: rope_theta(_section(stated, kind), theta) for kind, theta in older.items()}
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (GLOBAL, LOCAL) for kind in kinds):
        raise ExportError(f"config.json has layer_types {kinds}; it must name {GLOBAL} or {LOCAL} for {layers} layers")
    return tuple(Rotary(theta=thetas[kind], window=window if kind == LOCAL else 0) for kind in kinds)


def nomic_rotary(config: Config, layers: int) -> tuple[Rotary, ...]:
    theta = rope_theta(_section(config, "rope_parameters"), config.get("rotary_emb_base", 1000.0))
    return (Rotary(theta=theta),) * layers


def roformer_rotary(config: Config, layers: int) -> tuple[Rotary, ...]:
    return (Rotary(theta=10_000.0, is_stored=True, turns_values=config.get("rotary_value") is True),) * layers


def gte_rotary(config: Config, layers: int) -> tuple[Rotary, ...]:
    """Reads rope_theta, and in rope_scaling the fixed NTK scaling that the published models have."""
    theta = rope_theta(_section(config, "rope_parameters"), config.get("rope_theta", 160_000.0))
    scaling = _section(config, "rope_scaling") or {"type": "ntk", "factor": 1.0}
    factor, is_plain = scaling.get("factor"), scaling.get("type") == "ntk" and scaling.get("mixed_b") is None
    if not is_plain or not isinstance(factor, float | int) or factor <= 0:
        raise ExportError(f"config.json sets rope_scaling to {scaling}, which is not supported: only ntk with a factor")
    size = config["hidden_size"] // config["num_attention_heads"]
    return (Rotary(theta=theta * factor, divisor=factor ** (2 / size)),) * layers


def _section(config: Config, key: str) -> Config:
    """The object at `key`; empty without it. Raises ExportError if it is something else."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ExportError(f"config.json sets {key} to {value!r}; it must be an object")
    return value or {}


def rope_theta(parameters: Config, default: Any) -> float:
    """The rope_theta of `parameters`. Raises ExportError if it is no positive number or is scaled."""
    theta, kind = parameters.get("rope_theta", default), parameters.get("rope_type", "default")
    if kind != "default":
        raise ExportError(f"config.json sets rope_type to {kind!r}, which is not supported (only 'default' is)")
    if not isinstance(theta, float | int) or not theta > 0:
        raise ExportError(f"config.json sets rope_theta to {theta!r}; it must be a positive number")
    return float(theta)


def relative_positions(config: Config) -> RelativePositions:
    """The settings of a DeBERTa. Raises ExportError if its config sets something that is not computed."""
    stated = config.get("pos_att_type") or []
    terms = frozenset(map(str, stated) if isinstance(stated, list) else str(stated).lower().replace(" ", "").split("|"))
    if not terms <= {"c2p", "p2c"}:
        raise ExportError(f"config.json sets pos_att_type to {stated!r}; it must be a list of c2p and p2c")
    hidden = config.get("hidden_size")
    for key in ("embedding_size", "pooler_hidden_size"):
        if config.get(key, hidden) != hidden:
            raise ExportError(f"config.json sets {key} to {config[key]!r}; only that of hidden_size is supported")
    longest, buckets = (
        int_setting(config, key, -1, least=-1) for key in ("max_relative_positions", "position_buckets")
    )
    longest = longest if longest > 0 else int_setting(config, "max_position_embeddings", 512)
    if buckets > 0 and not 0 < buckets // 2 < longest - 1:
        raise ExportError(f"config.json sets position_buckets to {buckets}, for distances of up to {longest}")
    if (positions := int_setting(config, "max_position_embeddings", 512)) > MAX_POSITIONS:
        raise ExportError(
            f"config.json sets max_position_embeddings to {positions}; at most {MAX_POSITIONS} are supported"
        )
    activation = config.get("conv_act", "tanh") if config.get("conv_kernel_size") else ""
    return RelativePositions(
        terms=terms,
        shares_projections=config.get("share_att_key") is True,
        is_normed="layer_norm" in str(config.get("norm_rel_ebd", "none")).lower(),
        buckets=max(buckets, 0),
        longest=longest,
        convolution=activation if activation in ("", "tanh") else activation_setting("conv_act", activation),
    )
