"""The settings that say which model is served and how its artifact is made. Knows neither the hub nor the cache."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, PrivateAttr


class ModelSettings(BaseModel):
    artifact: Path | None = Field(None, description="folder written by `bert-export`; this or BERT_MODEL must be set")
    model: str | None = Field(
        None,
        description="what to serve: a hub id (ORG/NAME or ORG/NAME@REVISION), a checkpoint's folder or an artifact; "
        "the first start downloads and exports it",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = Field(
        "fp32",
        description="of the export of BERT_MODEL; auto: the first that is fast here, its check within its bound: "
        "on a CPU int8 (VNNI or AMX), bf16 (AVX512-BF16 or AMX, and the extra openvino), fp32; on a GPU fp16, fp32",
    )
    cache: Path | None = Field(
        None,
        description="folder of the artifacts that BERT_MODEL was exported to; unset: bert-service in $XDG_CACHE_HOME "
        "or ~/.cache",
    )
    update: bool = Field(
        False, description="ask the hub at every start whether the branch of BERT_MODEL has a newer commit"
    )

    _xdg_cache_home: str = PrivateAttr(default="")

    @property
    def cache_folder(self) -> Path:
        """Of BERT_CACHE or its default. Raises RuntimeError where this user has no home."""
        return self.cache or Path(self._xdg_cache_home or "~/.cache").expanduser() / "bert-service"

    def why_no_model(self) -> str:
        """Why these settings do not name one model; empty if they do."""
        if self.artifact is None and self.model is None:
            return "BERT_MODEL: a hub id, a checkpoint's folder or an artifact is required; or set BERT_ARTIFACT"
        if self.artifact is not None and self.model is not None:
            return (
                "BERT_MODEL and BERT_ARTIFACT are both set: leave one out; BERT_MODEL also takes an artifact's folder"
            )
        if self.artifact is not None and "precision" in self.model_fields_set:
            return "BERT_PRECISION is for BERT_MODEL: an artifact has its own; leave it out, or set BERT_MODEL"
        return ""
