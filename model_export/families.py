"""The model families in one table: numbers, names of weights by the rules in part_names, tokens."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import part_names as stored
from .architecture import (
    CONVOLUTION_WIDTH,
    Architecture,
    Config,
    RelativePositions,
    Rotary,
    activation_setting,
    gte_rotary,
    int_setting,
    modernbert_rotary,
    nomic_rotary,
    relative_positions,
    roformer_rotary,
)
from .errors import ExportError

SUPPORTED = {  # config keys that change the arithmetic -> the values that this exporter supports
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "quantization_config": (None,),
    "pruned_heads": ({}, None),
    "inner_group_num": (1, None),
    "relative_attention_num_buckets": (32, None),
    "num_experts": (0, None),
}
BERT_TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "pad": "[PAD]", "unk": "[UNK]"}
ROBERTA_TOKENS = {"cls": "<s>", "sep": "</s>", "mask": "<mask>", "pad": "<pad>", "unk": "<unk>"}
MAX_LAYERS = 1024  # the largest published encoders have 48
BERT_KEYS = {  # our number -> the config's key
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
BERT_DEFAULTS = {  # transformers', for keys that the config lacks
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
}
# transformers reads the last token for a multiple-choice head unless the config says otherwise
NO_SUMMARY = {"summary_type": "last", "summary_use_proj": False, "summary_activation": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What distinguishes a family's checkpoints from BERT's."""

    prefix: str  # of `parts`, in a checkpoint that also has heads; "|" is between two that are in use
    parts: Mapping[str, str] = field(default_factory=lambda: stored.BERT_PARTS)  # part of the encoder -> stored name
    # part of a head -> stored name; "|" is between two names that are in use
    heads: Mapping[str, str] = field(default_factory=lambda: stored.BERT_HEADS)
    keys: Mapping[str, str] = field(default_factory=dict)  # rows that replace those of BERT_KEYS; "|" as in `heads`
    defaults: Config = field(default_factory=dict)  # rows that replace those of BERT_DEFAULTS
    fixed: Mapping[str, Any] = field(default_factory=dict)  # our number -> its value in every checkpoint of the family
    position_offset: Callable[[Config], int] = lambda config: 0
    task_types: Callable[[Config], int] = lambda config: 0  # rows of the task type table; its first is always added
    positional: str = ""  # this and `norms`: see Architecture
    rotary: Callable[[Config, int], tuple[Rotary, ...]] = lambda config, layers: ()
    norms: str = "after"
    slices: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)  # part -> stored part, which of how many
    biases: Mapping[str, str] = field(default_factory=dict)  # part -> the config's key for its bias; "": it has none
    supported: Config = field(default_factory=dict)  # rows that replace those of SUPPORTED
    layer: Callable[[Config, int], int] = lambda config, i: i  # the stored layer that the i-th layer uses
    relative: Callable[[Config], RelativePositions] = lambda config: RelativePositions()
    pair: str = ""  # the pair head's training objective, a key of labels.PAIR_LABELS; "" without that head
    pair_of_name: Mapping[str, str] = field(default_factory=dict)  # substring of a checkpoint's name -> objective
    # of mlm_dense, otherwise the encoder's; of labels_dense and choices_dense, otherwise these heads read the pooler
    activations: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=lambda: BERT_TOKENS)
    tokenizer: str | None = None  # transformers' class if a checkpoint names none; None: of its files
    ignored: tuple[str, ...] = ("embeddings.position_ids",)  # stored, but without information
    # prefix of a head that no task reads -> its name
    ignored_heads: Mapping[str, str] = field(default_factory=dict)


def renamed(names: Mapping[str, str], rules: Mapping[str, str]) -> dict[str, str]:
    """The `names` of parts after the substitution of each pattern of `rules`, in order."""
    found = dict(names)
    for pattern, replacement in rules.items():
        found = {part: re.sub(pattern, replacement, name) for part, name in found.items()}
    return found


def without(names: Mapping[str, str], *parts: str) -> dict[str, str]:
    """The `names` of all but these `parts`."""
    return {part: name for part, name in names.items() if part not in parts}


ROBERTA = Family(
    prefix="roberta.",
    heads=stored.DENSE_CLASSIFIER | renamed(stored.BERT_MLM, stored.ROBERTA_RULES),
    position_offset=lambda config: int_setting(config, "pad_token_id", 1) + 1,
    activations={"mlm_dense": "gelu", "labels_dense": "tanh"},
    tokens=ROBERTA_TOKENS,
)
GTE = Family(
    prefix="gte.",
    parts=renamed(without(stored.BERT_PARTS, "position", "intermediate", *stored.PROJECTIONS), stored.GTE_RULES)
    | {"projections": "encoder.layer.{i}.attention.qkv_proj", "gated": "encoder.layer.{i}.mlp.up_gate_proj"},
    heads=stored.CLASSIFIERS
    | {"mlm_dense": "lm_head.dense", "mlm_norm": "lm_head.norm", "mlm_decoder": "lm_head.decoder"},
    defaults={"type_vocab_size": 1, "max_position_embeddings": 8192},
    positional="rotary",
    rotary=gte_rotary,
    slices=stored.PROJECTIONS | {"intermediate": ("gated", 1, 2), "gate": ("gated", 0, 2)},
    biases={"gated": ""},
    supported={
        "position_embedding_type": ("rope", None),
        "layer_norm_type": ("layer_norm", None),
        "pack_qkv": (True, None),
        "logn_attention_scale": (False, None),
    },
    tokens=ROBERTA_TOKENS,
)
JINA = Family(
    prefix="bert.",
    parts=without(stored.BERT_PARTS, "position", "intermediate") | stored.JINA_PARTS,
    keys={"activation": "feed_forward_type"},
    positional="alibi",
    slices={"intermediate": ("gated", 0, 2), "gate": ("gated", 1, 2)},
    biases={"gated": ""},
    supported={"position_embedding_type": ("alibi",), "hidden_act": ("gelu", None)},
    pair="is_next",
    activations={"mlm_dense": "gelu"},
    tokens=ROBERTA_TOKENS,
)
FAMILIES = {
    "bert": Family(
        prefix="bert.",
        pair="is_next",
        pair_of_name={"macbert": "order"},
        ignored_heads={"fit_dense": "distillation"},  # TinyBERT's, between its states and its teacher's
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "albert": Family(
        prefix="albert.",
        parts=renamed(stored.BERT_PARTS, stored.ALBERT_RULES) | {"projection": "encoder.embedding_hidden_mapping_in"},
        heads=renamed(stored.BERT_HEADS, stored.ALBERT_HEAD_RULES),
        keys={"embedding": "embedding_size"},
        defaults={"hidden_act": "gelu_new", "embedding_size": 128},
        layer=lambda config, i: int(
            i / (config["num_hidden_layers"] / int_setting(config, "num_hidden_groups", 1, least=1))
        ),
        pair="order",
        tokens=BERT_TOKENS | {"pad": "<pad>", "unk": "<unk>"},
    ),
    "distilbert": Family(
        prefix="distilbert.",
        parts=renamed(without(stored.BERT_PARTS, "segment", "pooler"), stored.DISTILBERT_RULES),
        heads=stored.DISTILBERT_HEADS,
        keys={
            "hidden": "dim",
            "embedding": "dim",
            "layers": "n_layers",
            "heads": "n_heads",
            "intermediate": "hidden_dim",
            "activation": "activation",
        },
        defaults={"activation": "gelu"},
        fixed={"norm_epsilon": 1e-12, "segments": 0},
        activations={"labels_dense": "relu", "choices_dense": "relu"},
    ),
    "ernie": Family(
        prefix="ernie.",
        parts=stored.BERT_PARTS | {"task_type": "embeddings.task_type_embeddings"},
        task_types=lambda config: (
            int_setting(config, "task_type_vocab_size", 3, least=1) if config.get("use_task_id") else 0
        ),
        pair="is_next",
    ),
    "electra": Family(
        prefix="electra.",
        parts=without(stored.BERT_PARTS, "pooler") | {"projection": "embeddings_project"},
        heads=stored.ELECTRA_HEADS,
        keys={"embedding": "embedding_size"},
        defaults={"embedding_size": 128},
        activations=dict.fromkeys(("mlm_dense", "labels_dense", "choices_dense"), "gelu"),
        ignored_heads={"discriminator_predictions.": "replaced_tokens"},
    ),
    "mpnet": replace(
        ROBERTA,
        prefix="mpnet.",
        parts=renamed(stored.BERT_PARTS, stored.MPNET_RULES) | {"relative": "encoder.relative_attention_bias"},
        fixed={"segments": 0},
        position_offset=lambda config: 2,  # the row of padding is 1, whatever config.json says
        positional="relative",
        tokens=ROBERTA_TOKENS | {"unk": "[UNK]"},
    ),
    "modernbert": Family(
        prefix="model.",
        parts=stored.MODERNBERT_PARTS,
        heads=stored.MODERNBERT_HEADS,
        keys={"activation": "hidden_activation", "norm_epsilon": "norm_eps"},
        defaults={"norm_eps": 1e-5, "hidden_activation": "gelu", "max_position_embeddings": 8192},
        fixed={"segments": 0},
        positional="rotary",
        rotary=modernbert_rotary,
        norms="before",
        slices=stored.PROJECTIONS | {"intermediate": ("gated", 0, 2), "gate": ("gated", 1, 2)},
        biases={
            **dict.fromkeys(("projections", "attention"), "attention_bias"),
            **dict.fromkeys(("gated", "output"), "mlp_bias"),
            **dict.fromkeys(("embedding_norm", "attention_norm", "output_norm", "final_norm"), "norm_bias"),
            **dict.fromkeys(("mlm_norm", "classifier_norm"), "norm_bias"),
            **dict.fromkeys(("mlm_dense", "labels_dense", "choices_dense"), "classifier_bias"),
        },
        supported={
            "position_embedding_type": ("absolute", "sans_pos", "rope", None),  # read by no version of transformers
            "rope_scaling": (None,),
            "classifier_activation": ("gelu", None),
            "classifier_pooling": ("cls", "mean", None),
        },
        activations=dict.fromkeys(("mlm_dense", "labels_dense", "choices_dense"), "gelu"),
    ),
    "nomic_bert": Family(
        prefix="nomic_bert.|bert.",
        parts=renamed(without(stored.BERT_PARTS, "position", *stored.PROJECTIONS), stored.NOMIC_RULES)
        | {"projections": "encoder.layers.{i}.attn.Wqkv", "gate": "encoder.layers.{i}.mlp.fc11"},
        heads=stored.CLASSIFIERS | renamed(stored.BERT_MLM, {"LayerNorm": "layer_norm"}),
        keys={  # as transformers names them, or as they were published
            "hidden": "hidden_size|n_embd",
            "embedding": "hidden_size|n_embd",
            "layers": "num_hidden_layers|n_layer",
            "heads": "num_attention_heads|n_head",
            "intermediate": "intermediate_size|n_inner",
            "activation": "hidden_act|activation_function",
            "norm_epsilon": "layer_norm_eps|layer_norm_epsilon",
            "positions": "max_position_embeddings|n_positions",
        },
        defaults={"hidden_act": "silu", "max_position_embeddings": 2048},
        positional="rotary",
        rotary=nomic_rotary,
        slices=stored.PROJECTIONS,
        biases={
            **dict.fromkeys(("projections", "attention"), "qkv_proj_bias"),
            **dict.fromkeys(("intermediate", "gate"), "mlp_fc1_bias"),
            "output": "mlp_fc2_bias",
        },
        supported={
            **dict.fromkeys(
                ("prenorm", "causal", "use_rms_norm", "parallel_block", "rotary_emb_interleaved"), (False, None)
            ),
            **dict.fromkeys(("rotary_scaling_factor", "rotary_emb_scale_base"), (None,)),
            "rotary_emb_fraction": (1.0, None),
        },
    ),
    "gte": GTE,
    "new": replace(GTE, prefix="new."),
    "jina_bert": JINA,
    "jina_bert_code": replace(
        JINA,
        parts={**JINA.parts, **stored.JINA_CODE_PARTS},
        slices={"intermediate": ("gated", 1, 2), "gate": ("gated", 0, 2)},
        norms="twice",
    ),
    "roformer": Family(
        prefix="roformer.",
        parts=without(stored.BERT_PARTS, "position", "pooler")
        | {"projection": "embeddings_project", "turns": "encoder.embed_positions"},
        heads=stored.ELECTRA_CLASSIFIERS | stored.BERT_MLM,
        keys={"embedding": "embedding_size|hidden_size"},
        defaults={"max_position_embeddings": 1536} | NO_SUMMARY,
        positional="rotary",
        rotary=roformer_rotary,
        supported={"hidden_act": ("gelu", None)},
        activations={"labels_dense": "gelu", "choices_dense": "gelu"},
        tokenizer="RoFormerTokenizer",
    ),
    "deberta-v2": Family(
        prefix="deberta.",
        parts=renamed(without(stored.BERT_PARTS, "position", "segment", "pooler"), {r"(self\.\w+)": r"\1_proj"})
        | stored.DEBERTA_PARTS,
        heads=stored.DEBERTA_HEADS,
        defaults={"layer_norm_eps": 1e-7},
        fixed={"segments": 0},
        positional="disentangled",
        relative=relative_positions,
        supported={
            "relative_attention": (True,),
            "position_biased_input": (False,),
            "type_vocab_size": (0, None),
            "pooler_hidden_act": ("gelu", None),
            "conv_kernel_size": (CONVOLUTION_WIDTH, 0, None),
            "conv_groups": (1, None),
        },
        activations={"labels_dense": "gelu", "choices_dense": "gelu"},
        ignored=("embeddings.position_ids", "embeddings.position_embeddings.weight"),
        ignored_heads={"mask_predictions.": "replaced_tokens"},
    ),
}


def jina_family(names: Iterable[str]) -> str:
    """The family of a JinaBERT whose weights have these `names`: all its configs say that it is a BERT."""
    return "jina_bert_code" if any(".up_gated_layer." in name for name in names) else "jina_bert"


def family_of(config: Config) -> Family:
    """The row of the config's model_type. Raises ExportError if there is none."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ExportError(f"config.json has model_type {name!r}; supported are {known}: choose a checkpoint of these")
    return FAMILIES[name]


def architecture_of(config: Config) -> Architecture:
    """The architecture that a config describes. Raises ExportError if it is damaged or not supported."""
    family = family_of(config)
    for key, accepted in (SUPPORTED | dict(family.supported)).items():
        if config.get(key) not in accepted:
            raise ExportError(
                f"config.json sets {key} to {config.get(key)!r}, which is not supported (only {accepted[0]!r} is): "
                "choose a checkpoint that was trained so"
            )
    keys = {ours: key for ours, key in (BERT_KEYS | dict(family.keys)).items() if ours not in family.fixed}
    values = dict(family.fixed) | {ours: _value(config, family, ours, key) for ours, key in keys.items()}
    activation = activation_setting(keys["activation"], values.pop("activation"))
    if values["hidden"] % values["heads"]:
        raise ExportError(
            f"config.json has hidden size {values['hidden']}, which is not divisible by {values['heads']} heads"
        )
    if values["layers"] > MAX_LAYERS:
        raise ExportError(f"config.json has {values['layers']} layers; at most {MAX_LAYERS} are supported")
    offset = family.position_offset(config)
    values["positions"] -= offset
    if values["positions"] < 3:
        raise ExportError(f"config.json leaves {values['positions']} usable positions; a text needs at least 3")
    return Architecture(
        family=config["model_type"],
        activation=activation,
        position_offset=offset,
        task_types=family.task_types(config),
        positional=family.positional,
        rotary=family.rotary(config, values["layers"]),
        norms=family.norms,
        is_gated="gate" in {*family.parts, *family.slices},
        relative=family.relative(config),
        **values,
    )


def _value(config: Config, family: Family, ours: str, key: str) -> Any:
    known = key.split("|")
    key = next((one for one in known if config.get(one) is not None), known[0])
    value = config.get(key, family.defaults.get(key, BERT_DEFAULTS.get(key)))
    if value is None:
        raise ExportError(f"config.json has no {key}, which family {config['model_type']!r} needs")
    if ours == "activation":
        return value
    if ours != "norm_epsilon":
        return int_setting({key: value}, key, 0, least=0 if ours == "segments" else 1)
    if not isinstance(value, float | int) or not 0 < value < 1:
        raise ExportError(f"config.json sets {key} to {value!r}; it must be a number between 0 and 1")
    return value
