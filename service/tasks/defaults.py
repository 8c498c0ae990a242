"""What /embed and /v1/embeddings give to a request that does not say it: the artifact's decision, or the operator's."""

from dataclasses import dataclass

from ..artifact import Manifest
from ..settings import RootTask, Settings, SettingsError

ROOT_HEADS: dict[RootTask, str] = {
    "answer": "spans",
    "choose": "choices",
    "fill-mask": "fill_mask",
    "nsp": "pair",
    "predict": "labels",
    "tag": "tags",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingDefaults:
    pooling: str  # the output that is the vector
    normalize: bool  # in /embed
    openai_normalize: bool  # in /v1/embeddings: unit length, as OpenAI's, unless BERT_NORMALIZE says otherwise
    kept_dimensions: int | None  # how many leading numbers its vectors have; None: all
    decided_by: str  # the settings or the artifact, in words


def embedding_defaults(manifest: Manifest, settings: Settings) -> EmbeddingDefaults:
    """Raises SettingsError if BERT_POOLING names an output that the artifact does not have."""
    stated = manifest.embedding
    pooling = settings.pooling or stated.pooling
    if pooling not in manifest.heads:
        has = ", ".join(name for name in ("cls", "mean", "pooler", "sentence") if name in manifest.heads)
        raise SettingsError(f"BERT_POOLING: {manifest.name} has no {pooling}; it has {has}")
    names = {"BERT_POOLING": settings.pooling, "BERT_NORMALIZE": settings.normalize}
    chosen = [name for name, value in names.items() if value is not None]
    normalize = stated.normalize if settings.normalize is None else settings.normalize
    return EmbeddingDefaults(
        pooling=pooling,
        normalize=normalize,
        openai_normalize=settings.normalize is not False,
        kept_dimensions=(stated.kept_dimensions or None) if pooling == stated.pooling else None,
        decided_by=" and ".join(chosen) if chosen else "the artifact",
    )


def is_cross_encoder(manifest: Manifest) -> bool:
    """A text classifier with a single label, as in other servers. Of two labels nothing says which is relevance."""
    return "labels" in manifest.heads and len(manifest.labels) == 1


def scorer(manifest: Manifest, settings: Settings) -> str | None:
    """What scores documents; BERT_RERANK=cosine replaces the vectors of tokens of ColBERT and BGE-M3."""
    if is_cross_encoder(manifest):
        return "cross-encoder"
    return "cosine" if settings.rerank == "cosine" else "maxsim" if "multi" in manifest.heads else None


def root_task(manifest: Manifest, settings: Settings) -> RootTask | None:
    """BERT_ROOT_TASK. Raises SettingsError for a task that the artifact cannot do."""
    task = settings.root_task
    if task in ROOT_HEADS and (head := ROOT_HEADS[task]) not in manifest.heads:
        raise SettingsError(f"BERT_ROOT_TASK: {manifest.name} has no {head} head, which {task} needs")
    if task == "rerank" and scorer(manifest, settings) is None:
        way_out = "set BERT_RERANK=cosine or another task"
        raise SettingsError(f"BERT_ROOT_TASK: {manifest.name} is no cross-encoder, which rerank needs: {way_out}")
    return task


def describe_defaults(manifest: Manifest, settings: Settings) -> str:
    """A line for the log. Raises as `embedding_defaults` and `root_task`."""
    root_task(manifest, settings)  # a task that the artifact cannot do ends the start here, before the model is loaded
    defaults, stated = embedding_defaults(manifest, settings), manifest.embedding
    made_by = ", ".join(stated.modules) or "the raw hidden state of [CLS]"
    own = f" ({made_by})" if defaults.pooling == stated.pooling else ""
    scale = "unit length" if defaults.normalize else "not normalized"
    prompt = f"prompt {stated.default_prompt}" if stated.default_prompt else "no prompt"
    return f"/embed by default: pooling {defaults.pooling}{own}, {scale}, {prompt}; decided by {defaults.decided_by}"
