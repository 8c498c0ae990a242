"""What a checkpoint is, without exporting it: family, sizes, heads, tokenizer, and what an export would refuse."""

from dataclasses import dataclass, field

from model_export.checkpoints.architecture import Architecture
from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.class_labels import pair_labels
from model_export.checkpoints.families import describe, family_of
from model_export.checkpoints.pooling import pooling_of
from model_export.errors import ExportError
from model_export.export import BuiltModel, build, check_tokenizer_fits
from model_export.tokenization.tokenizer_files import TokenizerFiles, read_vocabulary

SHOWN = 8  # labels


@dataclass(slots=True)
class Description:
    """Lines of `name: what`, and why an export would not work; no reason means that it would."""

    found: list[tuple[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def describe_checkpoint(checkpoint: Checkpoint) -> Description:
    """Each part is looked at even where another one would be refused."""
    description = Description()
    found = description.found
    found.append(
        ("weights", f"{checkpoint.format}, {len(checkpoint.names)} arrays, {checkpoint.parameters:,} parameters")
    )
    try:
        architecture = describe(checkpoint.config)
        found += _sizes(architecture)
        vocabulary = _tokenizer(checkpoint, architecture, description)
        found.append(("pooling", pooling_of(checkpoint)))
        built = build(checkpoint, "fp32", "cpu")
        found += _heads(checkpoint, built)
        if vocabulary is not None:
            check_tokenizer_fits(built, vocabulary)
    except ExportError as error:
        description.refused.append(str(error))
    found += [(f"assumed {what}", why) for what, why in checkpoint.assumed.items()]
    return description


def _sizes(a: Architecture) -> list[tuple[str, str]]:
    width = f"{a.layers} layers of {a.hidden}, {a.heads} heads, feed-forward {a.intermediate} with {a.activation}"
    narrow = f", embeddings of {a.embedding}" if a.embedding != a.hidden else ""
    tables = f"{a.vocabulary} words, {a.positions} positions from row {a.position_offset}, {a.segments} segments"
    return [("family", a.family), ("encoder", width + narrow), ("embeddings", tables)]


def _tokenizer(checkpoint: Checkpoint, a: Architecture, description: Description) -> TokenizerFiles | None:
    try:
        vocabulary = read_vocabulary(
            checkpoint.folder, checkpoint.config, family_of(checkpoint.config), size=a.vocabulary, positions=a.positions
        )
    except ExportError as error:
        description.refused.append(str(error))
        return None
    kind = type(vocabulary.tokenizer.model).__name__
    special = ", ".join(f"{name} {number}" for name, number in vocabulary.special_tokens.items())
    size = vocabulary.tokenizer.get_vocab_size()
    description.found.append(
        (
            "tokenizer",
            f"{kind} from {vocabulary.source}, {size} pieces, {special}; at most {vocabulary.max_tokens} tokens",
        )
    )
    checkpoint.assumed.update(vocabulary.assumed)
    return vocabulary


def _heads(checkpoint: Checkpoint, built: BuiltModel) -> list[tuple[str, str]]:
    names = built.classifier.names
    labels = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    said = {"labels": f"{labels}; scores by {built.classifier.scores}", "tags": labels}
    if "pair" in built.heads.present:
        said["pair"] = ", ".join(pair_labels(checkpoint, built.family))
    present = [f"{head} ({said[head]})" if head in said else head for head in built.heads.present]
    checkpoint.assumed.update(built.heads.assumed)
    return [("heads", "; ".join(present)), *((f"no {head}", why) for head, why in built.heads.missing.items())]
