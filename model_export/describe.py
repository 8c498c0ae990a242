"""Describes a checkpoint without exporting it: family, sizes, heads, tokenizer, and what an export would refuse."""

from dataclasses import dataclass, field
from pathlib import Path

from .architecture import Architecture
from .artifact.special_tokens import describe_own
from .build import BuiltModel, build_graph, check_tokenizer_fits
from .checkpoint import Checkpoint
from .errors import ExportError
from .families import architecture_of, family_of
from .labels import pair_labels
from .sentence import SentenceModel, embedding_model
from .tokenizer import TokenizerFiles, read_tokenizer

MAX_LABELS = 8  # that are listed


@dataclass(slots=True)
class Description:
    """Properties of a checkpoint by name, and the reasons why an export would fail; none if it would succeed."""

    found: list[tuple[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """A line for each property or reason."""
        width = max(len(name) for name, _ in self.found)
        reasons = self.refused or ["nothing: it can be exported"]
        lines = [*self.found, *(("refused", reason) for reason in reasons)]
        return "\n".join(f"{name:{width}}  {what}" for name, what in lines)


def describe_checkpoint(folder: Path, name: str = "", *, base: Path | None = None) -> Description:
    """Looks at each part even if another part would be refused. Raises ExportError if the weights cannot be read."""
    checkpoint, description = Checkpoint(folder, name, base=base), Description()
    found = description.found
    size = f"{len(checkpoint.names)} arrays, {checkpoint.parameters:,} parameters"
    found += [*checkpoint.identity.stated.items(), ("weights", f"{checkpoint.format}, {size}")]
    try:
        architecture = architecture_of(checkpoint.config)
        found += _describe_sizes(architecture)
        tokenizer = _describe_tokenizer(checkpoint, architecture, description)
        found += describe_embedding(embedding_model(checkpoint, architecture, without_modules=True))
        built = build_graph(checkpoint, "fp32", "cpu")
        found += _describe_heads(checkpoint, built)
        if tokenizer is not None:
            check_tokenizer_fits(built, tokenizer)
        built.graph.load_weights()
    except ExportError as error:
        description.refused.append(str(error))
    found += [(f"assumed {what}", why) for what, why in checkpoint.assumed.items()]
    return description


def describe_embedding(model: SentenceModel) -> list[tuple[str, str]]:
    """The vector that /embed gives by default, and the checkpoint's prompts."""
    words = f"{', '.join(model.modules) or 'the hidden state of [CLS]'}: {model.dimensions} numbers"
    words += f", of which the first {model.kept_dimensions} are kept" if model.kept_dimensions else ""
    found = [("embedding", words)]
    if model.prompts:
        default = f"; by default {model.default_prompt}" if model.default_prompt else ""
        found.append(("prompts", ", ".join(model.prompts) + default))
    return found


def _describe_sizes(a: Architecture) -> list[tuple[str, str]]:
    width = f"{a.layers} layers of {a.hidden}, {a.heads} heads, feed-forward {a.intermediate} with {a.activation}"
    narrow = f", embeddings of {a.embedding}" if a.embedding != a.hidden else ""
    tables = f"{a.vocabulary} words, {a.positions} positions from row {a.position_offset}, {a.segments} segments"
    return [("family", a.family), ("encoder", width + narrow), ("embeddings", tables)]


def _describe_tokenizer(checkpoint: Checkpoint, a: Architecture, description: Description) -> TokenizerFiles | None:
    config = checkpoint.config
    try:
        found = read_tokenizer(
            checkpoint.tokenizer_folder, checkpoint.files, family_of(config), size=a.vocabulary, positions=a.positions
        )
    except ExportError as error:
        description.refused.append(str(error))
        return None
    kind, size = type(found.tokenizer.model).__name__, found.tokenizer.get_vocab_size()
    special = ", ".join(f"{name} {number}" for name, number in found.special_tokens.items())
    text = f"{kind} from {found.source}, {size} pieces, {special}; at most {found.max_tokens} tokens"
    description.found.append(("tokenizer", text))
    if own := describe_own(found.tokenizer, found.special_tokens):
        description.found.append(("special tokens", own))
    checkpoint.assumed.update(found.assumed)
    return found


def _describe_heads(checkpoint: Checkpoint, built: BuiltModel) -> list[tuple[str, str]]:
    names = built.heads.classifier.names
    labels = ", ".join(names[:MAX_LABELS]) + (f" and {len(names) - MAX_LABELS} more" if len(names) > MAX_LABELS else "")
    details = {"labels": f"{labels}; scores by {built.heads.classifier.scores}", "tags": labels}
    if "pair" in built.heads.present:
        details["pair"] = ", ".join(pair_labels(checkpoint, built.parts.family))
    present = [f"{head} ({details[head]})" if head in details else head for head in built.heads.present]
    checkpoint.assumed.update(built.heads.assumed)
    return [("heads", "; ".join(present)), *((f"no {head}", why) for head, why in built.heads.missing.items())]
