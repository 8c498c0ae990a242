"""The content of /info: the model, its heads and limits, and what this process uses to run it."""

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from packbert.model_export.artifact.manifest import CUMULATIVE_LENGTHS, PACKED_ROWS

from ..artifact import Artifact
from ..settings import Settings
from ..tasks.defaults import embedding_defaults, scorer
from ..tasks.inputs import MAX_ATTENTION, MAX_TOP_K
from .session import OpenVinoSession, onnxruntime_version

CUDA_ATTENTION = {CUMULATIVE_LENGTHS: "packed", PACKED_ROWS: "plain"}  # by the layout of the graph


def engine_info(artifact: Artifact, settings: Settings, provider: str) -> dict[str, Any]:
    """What the artifact decides; the engine fills in `mask_token`."""
    manifest = artifact.manifest
    return {
        "model": manifest.name,
        "family": manifest.family,
        "heads": manifest.heads,
        **_embedding(artifact, settings),
        "missing_heads": manifest.missing,
        "assumed": manifest.assumed,
        "pair_labels": manifest.pair_labels,
        "labels": manifest.labels,
        "label_scores": manifest.label_scores,
        "sizes": manifest.sizes,
        "rerank": scorer(manifest, settings),
        "root_task": settings.root_task,
        "limits": _limits(artifact, settings),
        "truncate": settings.truncate,
        "special_tokens": settings.special_tokens,
        "mask_token": None,
        "precision": manifest.precision,
        "execution_provider": provider,
        "device": manifest.device,
        "cuda_attention": CUDA_ATTENTION[manifest.layout] if manifest.device == "cuda" else None,
        "verification": manifest.verification,
        "digest": artifact.digest,
        "identity": asdict(manifest.identity),
        "versions": {
            "exporter": manifest.exporter,
            "service": version("packbert"),
            "onnxruntime": onnxruntime_version(),
            **({"openvino": version("openvino")} if provider == OpenVinoSession.provider else {}),
        },
    }


def _embedding(artifact: Artifact, settings: Settings) -> dict[str, Any]:
    """What /embed gives to a request that does not say it, and what the checkpoint says."""
    stated, defaults = artifact.manifest.embedding, embedding_defaults(artifact.manifest, settings)
    return {
        "pooling": defaults.pooling,
        "normalize": defaults.normalize,
        "default_prompt_name": stated.default_prompt or None,
        "prompts": stated.prompts,
        "similarity_fn_name": stated.similarity or None,
        "embedding": {
            "decided_by": defaults.decided_by,
            "dimensions": defaults.kept_dimensions or artifact.manifest.outputs[defaults.pooling].shape[-1],
            "modules": stated.modules,
            "left_out": stated.left_out,
            "include_prompt": stated.include_prompt,
        },
    }


def _limits(artifact: Artifact, settings: Settings) -> dict[str, int]:
    return {
        "tokens": artifact.manifest.max_tokens,
        "inputs": settings.max_inputs,
        "characters": settings.max_characters,
        "body_bytes": settings.max_body_bytes,
        "top_k": MAX_TOP_K,
        "attention": MAX_ATTENTION,
        "waiting_tokens": settings.max_waiting_tokens,
        "timeout_ms": settings.timeout_ms,
    }
