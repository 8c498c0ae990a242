"""One row per family: how its config spells the architecture's numbers, how its checkpoint spells the parts, what it has.

A part's name is resolved by `Parts`, which every builder below reads weights through. A new family is a row here and a golden file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from model_export.architecture import Architecture
from model_export.checkpoint import Checkpoint, Weight
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    prefix: str  # of the encoder's weights in a checkpoint that also has heads
    parts: Mapping[str, str]  # our name -> the checkpoint's, {i}: layer
    keys: Mapping[str, str]  # our number -> the config's key
    defaults: Config  # what transformers takes where the config is silent
    position_offset: Callable[[Config], int] = lambda config: 0
    layer: Callable[[Config, int], int] = lambda config, i: i  # which stored layer the i-th one uses
    pair: str = "is_next"  # what the pair head was trained on
    mlm_activation: str = ""  # "" where the masked-LM head uses the encoder's
    ignored: tuple[str, ...] = field(default=("embeddings.position_ids",))  # weights that carry nothing


BERT_LAYER = {
    "query": "encoder.layer.{i}.attention.self.query",
    "key": "encoder.layer.{i}.attention.self.key",
    "value": "encoder.layer.{i}.attention.self.value",
    "attention": "encoder.layer.{i}.attention.output.dense",
    "attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "intermediate": "encoder.layer.{i}.intermediate.dense",
    "output": "encoder.layer.{i}.output.dense",
    "output_norm": "encoder.layer.{i}.output.LayerNorm",
}
BERT_EMBEDDINGS = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
}
BERT_HEADS = {
    "pooler": "pooler.dense",
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_decoder": "cls.predictions.decoder",
    "mlm_bias": "cls.predictions",
    "pair": "cls.seq_relationship",
}
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

FAMILIES = {
    "bert": Family(prefix="bert.", parts=BERT_EMBEDDINGS | BERT_LAYER | BERT_HEADS, keys=BERT_KEYS, defaults=BERT_DEFAULTS),
}


def family_of(config: Config) -> Family:
    name = config.get("model_type")
    if name not in FAMILIES:
        raise ExportError(f"config.json says model_type {name!r}; this exporter knows {', '.join(sorted(FAMILIES))}")
    return FAMILIES[name]


def describe(config: Config) -> Architecture:
    """The architecture that a config describes. Raises ExportError where the config says something this exporter does not compute."""
    family = family_of(config)
    for key, accepted in REFUSED.items():
        if config.get(key) not in accepted:
            raise ExportError(f"config.json sets {key} to {config[key]!r}, which this exporter does not compute (only {accepted[0]!r})")
    values = {ours: _value(config, family, theirs) for ours, theirs in family.keys.items()}
    activation = values.pop("activation")
    if activation not in ACTIVATIONS:
        raise ExportError(f"config.json sets {family.keys['activation']} to {activation!r}; this exporter computes {', '.join(sorted(ACTIVATIONS))}")
    if values["hidden"] % values["heads"]:
        raise ExportError(f"config.json says hidden size {values['hidden']}, which {values['heads']} heads do not divide")
    offset = family.position_offset(config)
    values["positions"] -= offset
    return Architecture(family=config["model_type"], activation=ACTIVATIONS[activation], position_offset=offset, **values)


def _value(config: Config, family: Family, key: str) -> Any:
    value = config.get(key, family.defaults.get(key))
    if value is None:
        raise ExportError(f"config.json does not say {key}, which family {config['model_type']!r} needs")
    return value


class Parts:
    """A checkpoint's weights under our names for the parts of a BERT."""

    def __init__(self, checkpoint: Checkpoint, family: Family) -> None:
        self._checkpoint = checkpoint
        self._family = family
        self._prefix = family.prefix if any(name.startswith(family.prefix) for name in checkpoint.names) else ""

    def weight(self, part: str, shape: tuple[int, ...], *, layer: int = 0) -> Weight:
        return self._checkpoint.weight(self._name(part, "weight", layer), shape=shape)

    def bias(self, part: str, size: int, *, layer: int = 0) -> Weight:
        return self._checkpoint.weight(self._name(part, "bias", layer), shape=(size,))

    def has(self, part: str, kind: str = "weight") -> bool:
        return part in self._family.parts and self._name(part, kind, 0) in self._checkpoint.names

    def ignore_known(self) -> None:
        """Marks what carries no arithmetic of its own: stored position numbers, a second copy of a tied decoder's bias."""
        known = {self._prefix + name for name in self._family.ignored} | {self._name("mlm_decoder", "bias", 0)}
        self._checkpoint.ignore(frozenset(known))

    def _name(self, part: str, kind: str, layer: int) -> str:
        stored = self._family.layer(self._checkpoint.config, layer)
        name = self._family.parts[part].format(i=stored)
        own = name.split(".")[0] in ("embeddings", "encoder", "pooler", "transformer")
        return f"{self._prefix if own else ''}{name}.{kind}"
