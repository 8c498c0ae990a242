"""The model families in one table: numbers, weight names, tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packbert.model_export.errors import ExportError


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
    relative: RelativePositions | None  # of the attention; None where it reads absolute positions alone

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


BERT_PARTS = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "encoder.layer.{i}.attention.self.query",
    "key": "encoder.layer.{i}.attention.self.key",
    "value": "encoder.layer.{i}.attention.self.value",
    "attention": "encoder.layer.{i}.attention.output.dense",
    "attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "intermediate": "encoder.layer.{i}.intermediate.dense",
    "output": "encoder.layer.{i}.output.dense",
    "output_norm": "encoder.layer.{i}.output.LayerNorm",
    "pooler": "pooler.dense",
}
BERT_HEADS = {
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_decoder": "cls.predictions.decoder",
    "mlm_bias": "cls.predictions",
    "pair": "cls.seq_relationship",
    "labels": "classifier",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
}
ROBERTA_HEADS = {
    "mlm_dense": "lm_head.dense",
    "mlm_norm": "lm_head.layer_norm",
    "mlm_decoder": "lm_head.decoder",
    "mlm_bias": "lm_head",
    "labels_dense": "classifier.dense",
    "labels": "classifier.out_proj",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
}
ALBERT_PARTS = BERT_PARTS | {
    "projection": "encoder.embedding_hidden_mapping_in",
    "query": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.query",
    "key": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.key",
    "value": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.value",
    "attention": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.dense",
    "attention_norm": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.LayerNorm",
    "intermediate": "encoder.albert_layer_groups.{i}.albert_layers.0.ffn",
    "output": "encoder.albert_layer_groups.{i}.albert_layers.0.ffn_output",
    "output_norm": "encoder.albert_layer_groups.{i}.albert_layers.0.full_layer_layer_norm",
    "pooler": "pooler",
}
ALBERT_HEADS = {
    "mlm_dense": "predictions.dense",
    "mlm_norm": "predictions.LayerNorm",
    "mlm_decoder": "predictions.decoder",
    "mlm_bias": "predictions",
    "pair": "sop_classifier.classifier",
    "labels": "classifier",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
}
DISTILBERT_PARTS = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "transformer.layer.{i}.attention.q_lin",
    "key": "transformer.layer.{i}.attention.k_lin",
    "value": "transformer.layer.{i}.attention.v_lin",
    "attention": "transformer.layer.{i}.attention.out_lin",
    "attention_norm": "transformer.layer.{i}.sa_layer_norm",
    "intermediate": "transformer.layer.{i}.ffn.lin1",
    "output": "transformer.layer.{i}.ffn.lin2",
    "output_norm": "transformer.layer.{i}.output_layer_norm",
}
DISTILBERT_HEADS = {
    "mlm_dense": "vocab_transform",
    "mlm_norm": "vocab_layer_norm",
    "mlm_decoder": "vocab_projector",
    "labels_dense": "pre_classifier",
    "choices_dense": "pre_classifier",
    "labels": "classifier",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
}
ERNIE_PARTS = BERT_PARTS | {"task_type": "embeddings.task_type_embeddings"}
ELECTRA_PARTS = {part: name for part, name in BERT_PARTS.items() if part != "pooler"} | {
    "projection": "embeddings_project"
}
ELECTRA_HEADS = {
    "mlm_dense": "generator_predictions.dense",
    "mlm_norm": "generator_predictions.LayerNorm",
    "mlm_decoder": "generator_lm_head",
    "labels_dense": "classifier.dense",
    "labels": "classifier.out_proj",
    "tags": "classifier",
    "choices_dense": "sequence_summary.summary",
    "choices": "classifier",
    "spans": "qa_outputs",
}
DEBERTA_PARTS = {part: name for part, name in BERT_PARTS.items() if part not in ("position", "segment", "pooler")} | {
    "query": "encoder.layer.{i}.attention.self.query_proj",
    "key": "encoder.layer.{i}.attention.self.key_proj",
    "value": "encoder.layer.{i}.attention.self.value_proj",
    "distances": "encoder.rel_embeddings",
    "distances_norm": "encoder.LayerNorm",
    "distance_query": "encoder.layer.{i}.attention.self.pos_query_proj",
    "distance_key": "encoder.layer.{i}.attention.self.pos_key_proj",
    "convolution": "encoder.conv.conv",
    "convolution_norm": "encoder.conv.LayerNorm",
}
DEBERTA_HEADS = {part: name for part, name in BERT_HEADS.items() if part != "pair"} | {
    "labels_dense": "pooler.dense",
    "choices_dense": "pooler.dense",
}
DEBERTA_LM_HEAD = {  # the masked-LM head of the authors' code
    "mlm_dense": "lm_predictions.lm_head.dense",
    "mlm_norm": "lm_predictions.lm_head.LayerNorm",
    "mlm_bias": "lm_predictions.lm_head",
}


Config = Mapping[str, Any]
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What distinguishes a family's checkpoints from BERT's."""

    prefix: str  # of `parts`, in a checkpoint that also has heads
    parts: Mapping[str, str]
    heads: Mapping[str, str]
    keys: Mapping[str, str]  # our number -> the config's key
    defaults: Config  # transformers' defaults for keys that the config lacks
    fixed: Mapping[str, Any] = field(default_factory=dict)  # our number -> its value in every checkpoint of the family
    position_offset: Callable[[Config], int] = lambda config: 0
    task_types: Callable[[Config], int] = lambda config: 0  # rows of the task type table; its first is always added
    layer: Callable[[Config, int], int] = lambda config, i: i  # the stored layer that the i-th layer uses
    relative: Callable[[Config], RelativePositions | None] = lambda config: None
    supported: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # as SUPPORTED, for this family alone
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
    "deberta-v2": Family(
        prefix="deberta.",
        parts=DEBERTA_PARTS,
        heads=DEBERTA_HEADS,
        other_heads=DEBERTA_LM_HEAD,
        keys={ours: theirs for ours, theirs in BERT_KEYS.items() if ours != "segments"},
        defaults=BERT_DEFAULTS | {"layer_norm_eps": 1e-7},
        fixed={"segments": 0},
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
        raise ExportError(f"config.json has model_type {name!r}; supported are {', '.join(sorted(FAMILIES))}")
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
    for key, accepted in {**SUPPORTED, **family.supported}.items():
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
        relative=family.relative(config),
        **values,
    )


def _value(config: Config, family: Family, ours: str, key: str) -> Any:
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
