"""The model families in one table: numbers, weight names (of part_names), tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packbert.model_export.errors import ExportError
from packbert.model_export.part_names import (
    ALBERT_HEADS,
    ALBERT_PARTS,
    BERT_HEADS,
    BERT_PARTS,
    DEBERTA_HEADS,
    DEBERTA_LM_HEAD,
    DEBERTA_PARTS,
    DISTILBERT_HEADS,
    DISTILBERT_PARTS,
    ELECTRA_HEADS,
    ELECTRA_PARTS,
    ERNIE_PARTS,
    GTE_HEADS,
    GTE_PARTS,
    MODERNBERT_HEADS,
    MODERNBERT_PARTS,
    MPNET_PARTS,
    NOMIC_HEADS,
    NOMIC_PARTS,
    PROJECTIONS,
    ROBERTA_HEADS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """How the attention of a layer knows positions (Su et al. 2021), and how far it sees."""

    theta: float
    divisor: float  # of all frequencies; 1 but where they are scaled
    window: int  # tokens to each side that a query attends to; 0: all


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativePositions:
    """What DeBERTa-v2 and v3 set of disentangled attention (He et al. 2021) and of the convolution beside layer 0."""

    terms: frozenset[str]  # "c2p" (content to position), "p2c" (position to content)
    shares_projections: bool  # positions are projected by the weights of the contents
    is_normed: bool  # the table of positions has a LayerNorm
    buckets: int  # of distances to one side; 0: a bucket for each distance
    longest: int  # the distance from which on all are one bucket
    convolution: str  # its activation; "" without one

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
    positional: str  # how attention knows positions: "" (not at all), "relative" (a bias), "disentangled", "rotary"
    rotary: tuple[Rotary, ...]  # of each layer; empty without
    is_prenorm: bool  # a layer's norms are before attention and feed-forward, and one is after the last layer
    is_gated: bool  # the feed-forward's activations are multiplied by another product of its input
    relative: RelativePositions | None  # of the attention; None where it reads absolute positions alone

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


Config = Mapping[str, Any]
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swiglu": "silu",  # the published name of a gated feed-forward with it
}
MAX_POSITIONS = 2**16  # where no table of positions bounds them
CONVOLUTION_WIDTH = 3  # tokens that DeBERTa's convolution reads
SUPPORTED = {  # config keys that change the arithmetic -> the values that this exporter supports
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "quantization_config": (None,),
    "pruned_heads": ({}, None),
    "inner_group_num": (1, None),
    "relative_attention_num_buckets": (32, None),
}
DEBERTA_SUPPORTED = {
    "relative_attention": (True,),
    "position_biased_input": (False,),
    "type_vocab_size": (0, None),
    "pooler_hidden_act": ("gelu", None),
    "conv_kernel_size": (CONVOLUTION_WIDTH, 0, None),
    "conv_groups": (1, None),
}
BERT_TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "pad": "[PAD]", "unk": "[UNK]"}
ROBERTA_TOKENS = {"cls": "<s>", "sep": "</s>", "mask": "<mask>", "pad": "<pad>", "unk": "<unk>"}
MPNET_TOKENS = ROBERTA_TOKENS | {"unk": "[UNK]"}
BERT_KEYS = {
    "vocabulary": "vocab_size",
    "hidden": "hidden_size",
    "embedding": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "activation": "hidden_act",
    "norm_epsilon": "layer_norm_eps",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
}
BERT_DEFAULTS = {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2, "max_position_embeddings": 512}
DISTILBERT_KEYS = {
    "vocabulary": "vocab_size",
    "hidden": "dim",
    "embedding": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "intermediate": "hidden_dim",
    "activation": "activation",
    "positions": "max_position_embeddings",
}
KEYS_WITHOUT_SEGMENTS = {ours: key for ours, key in BERT_KEYS.items() if ours != "segments"}
MODERNBERT_KEYS = KEYS_WITHOUT_SEGMENTS | {
    "activation": "hidden_activation",
    "norm_epsilon": "norm_eps",
}
MODERNBERT_BIASES = {
    **dict.fromkeys(("projections", "attention"), "attention_bias"),
    **dict.fromkeys(("gated", "output"), "mlp_bias"),
    **dict.fromkeys(("embedding_norm", "attention_norm", "output_norm", "final_norm"), "norm_bias"),
    **dict.fromkeys(("mlm_norm", "classifier_norm"), "norm_bias"),
    **dict.fromkeys(("mlm_dense", "labels_dense", "choices_dense"), "classifier_bias"),
}
NOMIC_KEYS = {  # as transformers names them, or as they were published
    "vocabulary": "vocab_size",
    "hidden": "hidden_size|n_embd",
    "embedding": "hidden_size|n_embd",
    "layers": "num_hidden_layers|n_layer",
    "heads": "num_attention_heads|n_head",
    "intermediate": "intermediate_size|n_inner",
    "activation": "hidden_act|activation_function",
    "norm_epsilon": "layer_norm_eps|layer_norm_epsilon",
    "positions": "max_position_embeddings|n_positions",
    "segments": "type_vocab_size",
}
NOMIC_BIASES = {
    **dict.fromkeys(("projections", "attention"), "qkv_proj_bias"),
    **dict.fromkeys(("intermediate", "gate"), "mlp_fc1_bias"),
    "output": "mlp_fc2_bias",
}
NOMIC_SUPPORTED: Config = {
    **dict.fromkeys(("prenorm", "causal", "use_rms_norm", "parallel_block", "rotary_emb_interleaved"), (False, None)),
    **dict.fromkeys(("rotary_scaling_factor", "rotary_emb_scale_base"), (None,)),
    "rotary_emb_fraction": (1.0, None),
}
GTE_SUPPORTED: Config = {
    "position_embedding_type": ("rope", None),
    "layer_norm_type": ("layer_norm", None),
    "pack_qkv": (True, None),
    "logn_attention_scale": (False, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What distinguishes a family's checkpoints from BERT's."""

    prefix: str  # of `parts`, in a checkpoint that also has heads; "|" is between two that are in use
    parts: Mapping[str, str]
    heads: Mapping[str, str]
    keys: Mapping[str, str]  # our number -> the config's key; "|" is between two that are in use
    defaults: Config  # transformers' defaults for keys that the config lacks
    fixed: Mapping[str, Any] = field(default_factory=dict)  # our number -> its value in every checkpoint of the family
    position_offset: Callable[[Config], int] = lambda config: 0
    task_types: Callable[[Config], int] = lambda config: 0  # rows of the task type table; its first is always added
    positional: str = ""  # those of Architecture
    rotary: Callable[[Config, int], tuple[Rotary, ...]] = lambda config, layers: ()
    is_prenorm: bool = False
    is_gated: bool = False
    slices: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)  # part -> stored part, which of how many
    biases: Mapping[str, str] = field(default_factory=dict)  # part -> the config's key for its bias; "": it has none
    supported: Config = field(default_factory=dict)  # in place of SUPPORTED
    layer: Callable[[Config, int], int] = lambda config, i: i  # the stored layer that the i-th layer uses
    relative: Callable[[Config], RelativePositions | None] = lambda config: None
    # other names of `heads`, which count where the checkpoint has one of them
    other_heads: Mapping[str, str] = field(default_factory=dict)
    pair: str = ""  # the pair head's training objective, a key of class_labels.PAIR_LABELS; "" without that head
    pair_of_name: Mapping[str, str] = field(default_factory=dict)  # substring of a checkpoint's name -> objective
    mlm_activation: str = ""  # of the masked-LM head; "" is the encoder's
    labels_activation: str = ""  # of the dense layer before the labels; "" if they read the pooler instead
    choices_activation: str = ""  # of the dense layer before the multiple-choice logit; "" if it reads the pooler
    tokens: Mapping[str, str] = field(default_factory=lambda: BERT_TOKENS)
    ignored: tuple[str, ...] = ("embeddings.position_ids",)  # stored, but without information
    # prefix of a head that no task reads -> its name
    ignored_heads: Mapping[str, str] = field(default_factory=dict)


GLOBAL, LOCAL = "full_attention", "sliding_attention"


def modernbert_rotary(config: Config, layers: int) -> tuple[Rotary, ...]:
    """By layer_types or global_attn_every_n_layers, and by rope_parameters (transformers 5) or the older keys."""
    every = int_setting(config, "global_attn_every_n_layers", 3, least=1)
    kinds = config.get("layer_types") or [LOCAL if i % every else GLOBAL for i in range(layers)]
    window = int_setting(config, "local_attention", 128, least=2) // 2
    stated = _section(config, "rope_parameters")
    older = {GLOBAL: config.get("global_rope_theta", 160_000.0), LOCAL: config.get("local_rope_theta", 10_000.0)}
    thetas = {kind: rope_theta(_section(stated, kind), theta) for kind, theta in older.items()}
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (GLOBAL, LOCAL) for kind in kinds):
        raise ExportError(f"config.json has layer_types {kinds}; it must name {GLOBAL} or {LOCAL} for {layers} layers")
    return tuple(Rotary(theta=thetas[kind], divisor=1.0, window=window if kind == LOCAL else 0) for kind in kinds)


def nomic_rotary(config: Config, layers: int) -> tuple[Rotary, ...]:
    theta = rope_theta(_section(config, "rope_parameters"), config.get("rotary_emb_base", 1000.0))
    return (Rotary(theta=theta, divisor=1.0, window=0),) * layers


def gte_rotary(config: Config, layers: int) -> tuple[Rotary, ...]:
    """With the fixed NTK scaling that the published models have, in rope_scaling."""
    theta = rope_theta(_section(config, "rope_parameters"), config.get("rope_theta", 160_000.0))
    scaling = _section(config, "rope_scaling") or {"type": "ntk", "factor": 1.0}
    factor = scaling.get("factor")
    if (
        scaling.get("type") != "ntk"
        or scaling.get("mixed_b") is not None
        or not isinstance(factor, float | int)
        or factor <= 0
    ):
        raise ExportError(f"config.json sets rope_scaling to {scaling}, which is not supported: only ntk with a factor")
    size = config["hidden_size"] // config["num_attention_heads"]
    return (Rotary(theta=theta * factor, divisor=factor ** (2 / size), window=0),) * layers


def _section(config: Config, key: str) -> Config:
    """The object at `key`; empty without it. Raises ExportError where it is something else."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ExportError(f"config.json sets {key} to {value!r}; it must be an object")
    return value or {}


def rope_theta(parameters: Config, default: Any) -> float:
    """The rope_theta of `parameters`. Raises ExportError where it is no positive number, or where it is scaled."""
    theta, kind = parameters.get("rope_theta", default), parameters.get("rope_type", "default")
    if kind != "default":
        raise ExportError(f"config.json sets rope_type to {kind!r}, which is not supported (only 'default' is)")
    if not isinstance(theta, float | int) or not theta > 0:
        raise ExportError(f"config.json sets rope_theta to {theta!r}; it must be a positive number")
    return float(theta)


BERT = Family(
    prefix="bert.",
    parts=BERT_PARTS,
    heads=BERT_HEADS,
    keys=BERT_KEYS,
    defaults=BERT_DEFAULTS,
    pair="is_next",
    pair_of_name={"macbert": "order"},
)
ROBERTA = Family(
    prefix="roberta.",
    parts=BERT_PARTS,
    heads=ROBERTA_HEADS,
    keys=BERT_KEYS,
    defaults=BERT_DEFAULTS | {"pad_token_id": 1},
    position_offset=lambda config: int_setting(config, "pad_token_id", 1) + 1,
    mlm_activation="gelu",
    labels_activation="tanh",
    tokens=ROBERTA_TOKENS,
)
GTE = Family(
    prefix="gte.",
    parts=GTE_PARTS,
    heads=GTE_HEADS,
    keys=BERT_KEYS,
    defaults=BERT_DEFAULTS | {"type_vocab_size": 1, "max_position_embeddings": 8192},
    positional="rotary",
    rotary=gte_rotary,
    is_gated=True,
    slices=PROJECTIONS | {"intermediate": ("gated", 1, 2), "gate": ("gated", 0, 2)},
    biases={"gated": ""},
    supported=GTE_SUPPORTED,
    tokens=ROBERTA_TOKENS,
)


def _relative_positions(config: Config) -> RelativePositions:
    """DeBERTa's, by its config. Raises ExportError where it sets something that is not computed."""
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
    if activation not in ("", "tanh", *ACTIVATIONS):
        raise ExportError(
            f"config.json sets conv_act to {activation!r}; supported are {', '.join(sorted(ACTIVATIONS))}"
        )
    return RelativePositions(
        terms=terms,
        shares_projections=config.get("share_att_key") is True,
        is_normed="layer_norm" in str(config.get("norm_rel_ebd", "none")).lower(),
        buckets=max(buckets, 0),
        longest=longest,
        convolution=ACTIVATIONS.get(activation, activation),
    )


FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "albert": Family(
        prefix="albert.",
        parts=ALBERT_PARTS,
        heads=ALBERT_HEADS,
        keys=BERT_KEYS | {"embedding": "embedding_size"},
        defaults=BERT_DEFAULTS | {"hidden_act": "gelu_new", "embedding_size": 128, "num_hidden_groups": 1},
        layer=lambda config, i: int(
            i / (config["num_hidden_layers"] / int_setting(config, "num_hidden_groups", 1, least=1))
        ),
        pair="order",
        tokens=BERT_TOKENS | {"pad": "<pad>", "unk": "<unk>"},
    ),
    "distilbert": Family(
        prefix="distilbert.",
        parts=DISTILBERT_PARTS,
        heads=DISTILBERT_HEADS,
        keys=DISTILBERT_KEYS,
        defaults={"activation": "gelu", "max_position_embeddings": 512},
        fixed={"norm_epsilon": 1e-12, "segments": 0},
        labels_activation="relu",
        choices_activation="relu",
    ),
    "ernie": Family(
        prefix="ernie.",
        parts=ERNIE_PARTS,
        heads=BERT_HEADS,
        keys=BERT_KEYS,
        defaults=BERT_DEFAULTS,
        task_types=lambda config: (
            int_setting(config, "task_type_vocab_size", 3, least=1) if config.get("use_task_id") else 0
        ),
        pair="is_next",
    ),
    "electra": Family(
        prefix="electra.",
        parts=ELECTRA_PARTS,
        heads=ELECTRA_HEADS,
        keys=BERT_KEYS | {"embedding": "embedding_size"},
        defaults=BERT_DEFAULTS | {"embedding_size": 128},
        mlm_activation="gelu",
        labels_activation="gelu",
        choices_activation="gelu",
        ignored_heads={"discriminator_predictions.": "replaced_tokens"},
    ),
    "mpnet": Family(
        prefix="mpnet.",
        parts=MPNET_PARTS,
        heads=ROBERTA_HEADS,
        keys=KEYS_WITHOUT_SEGMENTS,
        defaults=BERT_DEFAULTS,
        fixed={"segments": 0},
        position_offset=lambda config: 2,  # the row of padding is 1, whatever config.json says
        positional="relative",
        mlm_activation="gelu",
        labels_activation="tanh",
        tokens=MPNET_TOKENS,
    ),
    "modernbert": Family(
        prefix="model.",
        parts=MODERNBERT_PARTS,
        heads=MODERNBERT_HEADS,
        keys=MODERNBERT_KEYS,
        defaults={"norm_eps": 1e-5, "hidden_activation": "gelu", "max_position_embeddings": 8192},
        fixed={"segments": 0},
        positional="rotary",
        rotary=modernbert_rotary,
        is_prenorm=True,
        is_gated=True,
        slices=PROJECTIONS | {"intermediate": ("gated", 0, 2), "gate": ("gated", 1, 2)},
        biases=MODERNBERT_BIASES,
        supported={
            "rope_scaling": (None,),
            "classifier_activation": ("gelu", None),
            "classifier_pooling": ("cls", "mean", None),
        },
        mlm_activation="gelu",
        labels_activation="gelu",
        choices_activation="gelu",
    ),
    "nomic_bert": Family(
        prefix="nomic_bert.|bert.",
        parts=NOMIC_PARTS,
        heads=NOMIC_HEADS,
        keys=NOMIC_KEYS,
        defaults={"layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_act": "silu", "max_position_embeddings": 2048},
        positional="rotary",
        rotary=nomic_rotary,
        is_gated=True,
        slices=PROJECTIONS,
        biases=NOMIC_BIASES,
        supported=NOMIC_SUPPORTED,
    ),
    "gte": GTE,
    "new": replace(GTE, prefix="new."),
    "deberta-v2": Family(
        prefix="deberta.",
        parts=DEBERTA_PARTS,
        heads=DEBERTA_HEADS,
        other_heads=DEBERTA_LM_HEAD,
        keys={ours: theirs for ours, theirs in BERT_KEYS.items() if ours != "segments"},
        defaults=BERT_DEFAULTS | {"layer_norm_eps": 1e-7},
        fixed={"segments": 0},
        positional="disentangled",
        relative=_relative_positions,
        supported=DEBERTA_SUPPORTED,
        labels_activation="gelu",
        choices_activation="gelu",
        ignored=("embeddings.position_ids", "embeddings.position_embeddings.weight"),
        ignored_heads={"mask_predictions.": "replaced_tokens"},
    ),
}


def family_of(config: Config) -> Family:
    """The row of the config's model_type. Raises ExportError where there is none."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ExportError(f"config.json has model_type {name!r}; supported are {known}: choose a checkpoint of these")
    return FAMILIES[name]


def int_setting(config: Config, key: str, default: int, *, least: int = 0) -> int:
    """An integer of the config, `default` without the key. Raises ExportError unless it is at least `least`."""
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ExportError(f"config.json sets {key} to {value!r}; it must be an integer of at least {least}")
    return value


def architecture_of(config: Config) -> Architecture:
    """The architecture that a config describes. Raises ExportError where it is damaged or not supported."""
    family = family_of(config)
    for key, accepted in (SUPPORTED | dict(family.supported)).items():
        if config.get(key) not in accepted:
            raise ExportError(
                f"config.json sets {key} to {config.get(key)!r}, which is not supported (only {accepted[0]!r} is)"
            )
    values = dict(family.fixed) | {ours: _value(config, family, ours, theirs) for ours, theirs in family.keys.items()}
    activation = values.pop("activation")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ExportError(
            f"config.json sets {family.keys['activation']} to {activation!r}; "
            f"supported are {', '.join(sorted(ACTIVATIONS))}"
        )
    if values["hidden"] % values["heads"]:
        raise ExportError(
            f"config.json has hidden size {values['hidden']}, which is not divisible by {values['heads']} heads"
        )
    offset = family.position_offset(config)
    values["positions"] -= offset
    if values["positions"] < 3:
        raise ExportError(f"config.json leaves {values['positions']} usable positions; a text needs at least 3")
    return Architecture(
        family=config["model_type"],
        activation=ACTIVATIONS[activation],
        position_offset=offset,
        task_types=family.task_types(config),
        positional=family.positional,
        rotary=family.rotary(config, values["layers"]),
        is_prenorm=family.is_prenorm,
        is_gated=family.is_gated,
        relative=family.relative(config),
        **values,
    )


def _value(config: Config, family: Family, ours: str, key: str) -> Any:
    known = key.split("|")
    key = next((one for one in known if config.get(one) is not None), known[0])
    value = config.get(key, family.defaults.get(key))
    if value is None:
        raise ExportError(f"config.json has no {key}, which family {config['model_type']!r} needs")
    if ours == "activation":
        return value
    if ours != "norm_epsilon":
        return int_setting({key: value}, key, 0, least=0 if ours == "segments" else 1)
    if not isinstance(value, float | int) or not 0 < value < 1:
        raise ExportError(f"config.json sets {key} to {value!r}; it must be a number between 0 and 1")
    return value
