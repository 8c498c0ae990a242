"""One row per family: how its config spells the architecture's numbers, how its checkpoint spells the parts, what it has.

A part's name is resolved by `Parts`, which every builder reads weights through. A new family is a row here and a golden file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from model_export.checkpoints import weight_names as names
from model_export.checkpoints.architecture import Architecture
from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.lazy_weight import LazyWeight
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
REFUSED = {  # config keys that change the arithmetic -> the only values this exporter computes
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
    prefix: str  # of `parts` in a checkpoint that also has heads
    parts: Mapping[str, str]
    heads: Mapping[str, str]
    keys: Mapping[str, str]  # our number -> the config's key
    defaults: Config  # what transformers takes where the config is silent
    fixed: Mapping[str, Any] = field(default_factory=dict)  # our number -> its value in every checkpoint of the family
    position_offset: Callable[[Config], int] = lambda config: 0
    task_types: Callable[[Config], int] = lambda config: (
        0
    )  # rows of the task type table, of which the first is added to every token
    layer: Callable[[Config, int], int] = lambda config, i: i  # which stored layer the i-th one uses
    pair: str = ""  # what the pair head was trained on: a key of labels.PAIRS; "" where the family has none
    pair_of_name: Mapping[str, str] = field(
        default_factory=dict
    )  # part of a checkpoint's name -> what its pair head was trained on instead
    mlm_activation: str = ""  # "" where the masked-LM head uses the encoder's
    labels_activation: str = ""  # of the dense layer before the labels; "" where they are read off the pooler
    tokens: Mapping[str, str] = field(default_factory=lambda: BERT_TOKENS)
    pieces: str = ""  # how a SentencePiece model becomes its tokenizer: a key of pieces.KINDS
    ignored: tuple[str, ...] = ("embeddings.position_ids",)  # parts that carry nothing
    unserved: Mapping[str, str] = field(default_factory=dict)  # prefix of a head that no task reads -> its name


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
    position_offset=lambda config: whole(config, "pad_token_id", 1) + 1,
    mlm_activation="gelu",
    labels_activation="tanh",
    tokens=ROBERTA_TOKENS,
    pieces="xlm-roberta",
)
FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": replace(ROBERTA, pieces="camembert"),
    "albert": Family(
        prefix="albert.",
        parts=names.ALBERT_PARTS,
        heads=names.ALBERT_HEADS,
        keys=BERT_KEYS | {"embedding": "embedding_size"},
        defaults=BERT_DEFAULTS | {"hidden_act": "gelu_new", "embedding_size": 128, "num_hidden_groups": 1},
        layer=lambda config, i: int(i / (config["num_hidden_layers"] / whole(config, "num_hidden_groups", 1, least=1))),
        pair="order",
        tokens=BERT_TOKENS | {"pad": "<pad>", "unk": "<unk>"},
        pieces="albert",
    ),
    "distilbert": Family(
        prefix="distilbert.",
        parts=names.DISTILBERT_PARTS,
        heads=names.DISTILBERT_HEADS,
        keys=DISTILBERT_KEYS,
        defaults={"activation": "gelu", "max_position_embeddings": 512},
        fixed={"norm_epsilon": 1e-12, "segments": 0},
        labels_activation="relu",
    ),
    "ernie": Family(
        prefix="ernie.",
        parts=names.ERNIE_PARTS,
        heads=names.BERT_HEADS,
        keys=BERT_KEYS,
        defaults=BERT_DEFAULTS,
        task_types=lambda config: whole(config, "task_type_vocab_size", 3, least=1) if config.get("use_task_id") else 0,
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
        unserved={"discriminator_predictions.": "replaced_tokens"},
    ),
}


def family_of(config: Config) -> Family:
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ExportError(f"config.json says model_type {name!r}; this exporter knows {', '.join(sorted(FAMILIES))}")
    return FAMILIES[name]


def whole(config: Config, key: str, usual: int, *, least: int = 0) -> int:
    """A whole number of the config, `usual` where it is silent. Raises ExportError where it says something else."""
    value = config.get(key, usual)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ExportError(f"config.json sets {key} to {value!r}; it must be a whole number from {least} on")
    return value


def describe(config: Config) -> Architecture:
    """The architecture that a config describes. Raises ExportError where the config says something this exporter does not compute."""
    family = family_of(config)
    for key, accepted in REFUSED.items():
        if config.get(key) not in accepted:
            raise ExportError(
                f"config.json sets {key} to {config[key]!r}, which this exporter does not compute (only {accepted[0]!r})"
            )
    values = dict(family.fixed) | {ours: _value(config, family, ours, theirs) for ours, theirs in family.keys.items()}
    activation = values.pop("activation")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ExportError(
            f"config.json sets {family.keys['activation']} to {activation!r}; this exporter computes {', '.join(sorted(ACTIVATIONS))}"
        )
    if values["hidden"] % values["heads"]:
        raise ExportError(
            f"config.json says hidden size {values['hidden']}, which {values['heads']} heads do not divide"
        )
    offset = family.position_offset(config)
    values["positions"] -= offset
    if values["positions"] < 3:
        raise ExportError(f"config.json leaves {values['positions']} positions; a text needs at least three")
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
        raise ExportError(f"config.json does not say {key}, which family {config['model_type']!r} needs")
    if ours == "activation":
        return value
    if ours != "norm_epsilon":
        return whole({key: value}, key, 0, least=0 if ours == "segments" else 1)
    if not isinstance(value, float | int) or not 0 < value < 1:
        raise ExportError(f"config.json sets {key} to {value!r}; it must be a number between 0 and 1")
    return value


class NamedWeights:
    """A checkpoint's weights under our names for the parts of a BERT."""

    def __init__(self, checkpoint: Checkpoint, family: Family) -> None:
        self._checkpoint = checkpoint
        self._family = family
        self._prefix = family.prefix if any(name.startswith(family.prefix) for name in checkpoint.names) else ""

    def weight(self, part: str, shape: tuple[int, ...], *, layer: int = 0) -> LazyWeight:
        return self._checkpoint.weight(self._name(part, "weight", layer), shape=shape)

    def bias(self, part: str, size: int, *, layer: int = 0) -> LazyWeight:
        return self._checkpoint.weight(self._name(part, "bias", layer), shape=(size,))

    def has(self, part: str, kind: str = "weight") -> bool:
        known = part in self._family.parts or part in self._family.heads
        return known and self._name(part, kind, 0) in self._checkpoint.names

    @property
    def untied(self) -> bool:
        """Whether the masked-LM decoder has weights of its own, and not those of the word embeddings."""
        return self._checkpoint.config.get("tie_word_embeddings", True) is False

    def ignore_known(self) -> None:
        """Marks what carries no arithmetic of its own: stored position numbers, a bias of the masked-LM head beside the decoder's own."""
        known = {self._prefix + name for name in self._family.ignored} | {self._name("mlm_decoder", "bias", 0)}
        if self.has("mlm_decoder", "bias") and self.has("mlm_bias", "bias"):
            known.add(self._name("mlm_bias", "bias", 0))
        known |= {name for name in self._checkpoint.names if name.startswith(tuple(self._family.unserved))}
        self._checkpoint.ignore(frozenset(known))

    def unserved(self) -> list[str]:
        """The heads that the checkpoint has and no task reads."""
        return [
            what
            for prefix, what in self._family.unserved.items()
            if any(name.startswith(prefix) for name in self._checkpoint.names)
        ]

    def _name(self, part: str, kind: str, layer: int) -> str:
        if part in self._family.heads:
            return f"{self._family.heads[part]}.{kind}"
        stored = self._family.layer(self._checkpoint.config, layer)
        return f"{self._prefix}{self._family.parts[part].format(i=stored)}.{kind}"
