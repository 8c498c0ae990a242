"""A LoRA adapter of peft (Hu et al. 2021), merged into the weights of its base: W + alpha / r * B A."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .artifact.manifest import ADAPTER_CONFIG
from .errors import ExportError
from .lazy_weight import Array, LazyWeight
from .weights import Weights, read_first

FILES = {"safetensors": "adapter_model.safetensors", "pytorch": "adapter_model.bin"}  # by priority
WRAPPER = "base_model.model."  # before the names of the base's weights
# A is [r, in] and B [out, r]; of a table of [rows, width] they are [r, rows] and [width, r]
LORA = re.compile(r"(?P<module>.+)\.lora_(?P<table>embedding_)?(?P<side>[AB])(\.weight)?")
STORED = (".weight", ".bias")  # ends of the names of weights that replace the base's, such as a classifier
HEADS = {"SEQ_CLS": "labels", "TOKEN_CLS": "tags"}  # task_type -> what a classifier classifies
VARIANTS = (  # settings under which W + alpha / r * B A is not the merged weight
    *("use_dora", "lora_bias", "layer_replication", "target_parameters", "trainable_token_indices"),
    *("alora_invocation_tokens", "use_qalora", "arrow_config"),
)
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")  # of init_lora_weights: the base stays as it is
WAY_OUT = "merge it with peft (merge_and_unload) and export the result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    folder: Path
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Raises ExportError for anything but LoRA."""
        kind = self.config.get("peft_type")
        if kind != "LORA":
            raise ExportError(f"{self.folder} holds an adapter of type {kind}; only LORA is merged here: {WAY_OUT}")
        if found := [name for name in VARIANTS if self.config.get(name)]:
            raise ExportError(
                f"{self.folder / ADAPTER_CONFIG} sets {found[0]}, and only plain LoRA is merged here: {WAY_OUT}"
            )
        if (start := self.config.get("init_lora_weights")) not in PLAIN_STARTS:
            raise ExportError(
                f"{self.folder / ADAPTER_CONFIG} sets init_lora_weights to {start!r}, which changes the base: {WAY_OUT}"
            )

    @property
    def base(self) -> str:
        """The folder or hub id of the base, with its revision; empty if the config names none."""
        name, revision = self.config.get("base_model_name_or_path"), self.config.get("revision")
        return f"{name}@{revision}" if name and revision else str(name or "")

    def local_base(self) -> Path:
        """Raises ExportError if the base is no folder on this machine."""
        if self.base and Path(self.base).is_dir():
            return Path(self.base)
        raise ExportError(
            f"{self.folder} is an adapter of {self.base or 'an unnamed base'}: name its folder with --base"
        )

    @property
    def head(self) -> str:
        """What the classifier classifies: "labels", "tags" or ""."""
        return HEADS.get(str(self.config.get("task_type")), "")

    def merge(self, weights: Weights, prefixes: Sequence[str]) -> Weights:
        """The `weights` of the base, whose encoder's names may have a prefix of `prefixes`, with those of the adapter.

        Raises ExportError if the adapter holds something that is not merged, or is not of this base.
        """
        stored = {
            name.removeprefix(WRAPPER).replace(".base_layer.", ".").replace(".modules_to_save.", "."): weight
            for name, weight in read_first(self.folder, FILES, "adapter").items()
            if ".original_module." not in name
        }
        merged = dict(weights)

        def find(name: str) -> str:
            """The base's name of a weight; empty if it has none."""
            other = [one for prefix in prefixes for one in (f"{prefix}{name}", name.removeprefix(prefix))]
            return next((one for one in (name, *other) if one in weights), "")

        for name, weight in stored.items():
            found = LORA.fullmatch(name)
            if found is None and not name.endswith(STORED):
                raise ExportError(f"{self.folder} holds {name}, which is not merged here: {WAY_OUT}")
            if found is None:
                merged[find(name) or name] = weight
            elif found["side"] == "A":
                module = found["module"]
                other = stored.get(f"{name[: found.start('side')]}B{name[found.end('side') :]}")
                if not (target := find(f"{module}.weight")) or other is None:
                    missing = f"{self.folder} adapts {module}, which its base does not have"
                    raise ExportError(f"{missing}: give another --base, or {WAY_OUT}")
                scale = self._scale(module, weight.shape[0])
                merged[target] = self._add(target, weights[target], (other, weight), scale, bool(found["table"]))
        return merged

    def _add(
        self, name: str, base: LazyWeight, factors: tuple[LazyWeight, LazyWeight], scale: float, is_table: bool
    ) -> LazyWeight:
        """`base` plus `scale` times the product of `factors`, transposed for a table."""
        (out, rank), (same, width) = factors[0].shape, factors[1].shape
        if rank != same or base.shape != ((width, out) if is_table else (out, width)):
            product = f"{list(factors[0].shape)} times {list(factors[1].shape)}"
            raise ExportError(f"{self.folder} adds {product} to {name}, which has the shape {list(base.shape)}")

        def load() -> Array:
            product = (factors[0].load() @ factors[1].load()) * np.float32(scale)
            return base.load() + (product.T if is_table else product)

        return LazyWeight(base.shape, load)

    def _scale(self, module: str, rank: int) -> float:
        """alpha / r, or alpha / sqrt(r) with rank-stabilized LoRA, for a module."""
        patterns = self.config.get("alpha_pattern") or {}
        stated = [patterns[key] for key in patterns if re.match(rf"(.*\.)?({key})$", module)]
        alpha = stated[0] if stated else self.config.get("lora_alpha", 8)
        if not isinstance(alpha, int | float):
            raise ExportError(f"{self.folder / ADAPTER_CONFIG} sets lora_alpha to {alpha!r}; it must be a number")
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)
