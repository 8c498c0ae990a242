"""A checkpoint's weights under this exporter's names for the parts of a BERT."""

from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.families import architecture_of, family_of
from model_export.checkpoints.lazy_weight import Dense, LazyWeight


class NamedWeights:
    """Finds weights by part and layer, and counts what was read. Raises ExportError where the config is not supported.

    `weight`, `bias` and `dense` raise ExportError where the checkpoint lacks the weight or has it in another shape.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.family = family_of(checkpoint.config)
        self.architecture = architecture_of(checkpoint.config)
        self._checkpoint = checkpoint
        prefix = self.family.prefix
        self._prefix = prefix if any(name.startswith(prefix) for name in checkpoint.names) else ""

    def weight(self, part: str, shape: tuple[int, ...], *, layer: int = 0) -> LazyWeight:
        return self._checkpoint.weight(self._name(part, "weight", layer), shape=shape)

    def bias(self, part: str, size: int, *, layer: int = 0) -> LazyWeight:
        return self._checkpoint.weight(self._name(part, "bias", layer), shape=(size,))

    def dense(self, part: str, out: int, width: int, *, layer: int = 0) -> Dense:
        return self.weight(part, (out, width), layer=layer), self.bias(part, out, layer=layer)

    def has(self, part: str, kind: str = "weight") -> bool:
        return self.knows(part) and self._name(part, kind, 0) in self._checkpoint.names

    def knows(self, part: str) -> bool:
        """Whether the family has such a part at all."""
        return part in self.family.parts or part in self.family.heads

    @property
    def has_projection(self) -> bool:
        """Whether a dense layer stands between the embeddings and the first layer."""
        return self.architecture.embedding != self.architecture.hidden or self.has("projection")

    @property
    def is_untied(self) -> bool:
        """Whether the masked-LM decoder has its own weights instead of those of the word embeddings."""
        return self._checkpoint.config.get("tie_word_embeddings", True) is False

    def ignore_known(self) -> None:
        """Marks weights as read that change no answer: stored position numbers, the duplicate of the decoder's bias."""
        known = {self._prefix + name for name in self.family.ignored} | {self._name("mlm_decoder", "bias", 0)}
        if self.has("mlm_decoder", "bias") and self.has("mlm_bias", "bias"):
            known.add(self._name("mlm_bias", "bias", 0))
        known |= {name for name in self._checkpoint.names if name.startswith(tuple(self.family.ignored_heads))}
        self._checkpoint.ignore(frozenset(known))

    def ignored_heads(self) -> list[str]:
        """The heads that the checkpoint has and no task reads."""
        stored = self._checkpoint.names
        heads = self.family.ignored_heads.items()
        return [head for prefix, head in heads if any(name.startswith(prefix) for name in stored)]

    def _name(self, part: str, kind: str, layer: int) -> str:
        if part in self.family.heads:
            return f"{self.family.heads[part]}.{kind}"
        stored = self.family.layer(self._checkpoint.config, layer)
        return f"{self._prefix}{self.family.parts[part].format(i=stored)}.{kind}"
