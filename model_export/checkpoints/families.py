"""One row per family: the config's keys, the names of the weights, and how the family differs from BERT.

`NamedWeights` resolves the names. A new family is a row in FAMILIES and a golden checkpoint in the tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from model_export.checkpoints import weight_names as names
from model_export.checkpoints.architecture import Architecture
from model_export.errors import ExportError

Config = Mapping[str, Any]
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
SUPPORTED = {  # config keys that change the arithmetic -> the values that this exporter supports
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "quantization_config": (None,),
    "pruned_heads": ({}, None),
    "inner_group_num": (1, None),
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
    """What distinguishes a family's checkpoints from BERT's. Names of weights: weight_names.py."""

    prefix: str  # of `parts`, in a checkpoint that also has heads
    parts: Mapping[str, str]
    heads: Mapping[str, str]
    keys: Mapping[str, str]  # our number -> the config's key
    defaults: Config  # transformers' defaults for keys that the config lacks
    fixed: Mapping[str, Any] = field(default_factory=dict)  # our number -> its value in every checkpoint of the family
    position_offset: Callable[[Config], int] = lambda config: 0
    task_types: Callable[[Config], int] = lambda config: 0  # rows of the task type table; its first is always added
    layer: Callable[[Config, int], int] = lambda config, i: i  # the stored layer that the i-th layer uses
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
    parts=names.BERT_PARTS,
    heads=names.BERT_HEADS,
    keys=BERT_KEYS,
    defaults=BERT_DEFAULTS,
    pair="is_next",
    pair_of_name={"macbert": "order"},
)
ROBERTA = Family(
    prefix="roberta.",
    parts=names.BERT_PARTS,
    heads=names.ROBERTA_HEADS,
    keys=BERT_KEYS,
    defaults=BERT_DEFAULTS | {"pad_token_id": 1},
    position_offset=lambda config: int_setting(config, "pad_token_id", 1) + 1,
    mlm_activation="gelu",
    labels_activation="tanh",
    tokens=ROBERTA_TOKENS,
)
FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "albert": Family(
        prefix="albert.",
        parts=names.ALBERT_PARTS,
        heads=names.ALBERT_HEADS,
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
        parts=names.DISTILBERT_PARTS,
        heads=names.DISTILBERT_HEADS,
        keys=DISTILBERT_KEYS,
        defaults={"activation": "gelu", "max_position_embeddings": 512},
        fixed={"norm_epsilon": 1e-12, "segments": 0},
        labels_activation="relu",
        choices_activation="relu",
    ),
    "ernie": Family(
        prefix="ernie.",
        parts=names.ERNIE_PARTS,
        heads=names.BERT_HEADS,
        keys=BERT_KEYS,
        defaults=BERT_DEFAULTS,
        task_types=lambda config: (
            int_setting(config, "task_type_vocab_size", 3, least=1) if config.get("use_task_id") else 0
        ),
        pair="is_next",
    ),
    "electra": Family(
        prefix="electra.",
        parts=names.ELECTRA_PARTS,
        heads=names.ELECTRA_HEADS,
        keys=BERT_KEYS | {"embedding": "embedding_size"},
        defaults=BERT_DEFAULTS | {"embedding_size": 128},
        mlm_activation="gelu",
        labels_activation="gelu",
        choices_activation="gelu",
        ignored_heads={"discriminator_predictions.": "replaced_tokens"},
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
    for key, accepted in SUPPORTED.items():
        if config.get(key) not in accepted:
            raise ExportError(
                f"config.json sets {key} to {config[key]!r}, which is not supported (only {accepted[0]!r} is)"
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
