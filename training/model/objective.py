"""Both of BERT's objectives on one batch of packed rows, and the counts for the log."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.data.batches import IGNORE, Rows
from training.model.model import Bert, Packed


def losses(model: Bert, packed: Packed, targets: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of both losses, the loss of every masked token, and the next-sentence scores."""
    with torch.autocast(targets.device.type, dtype=torch.bfloat16):
        scores, pair_scores = model(packed)
    by_token = functional.cross_entropy(scores.float(), targets, reduction="none")
    next_sentence = functional.cross_entropy(pair_scores.float(), labels, ignore_index=IGNORE)
    return by_token.mean() + next_sentence, by_token.detach(), pair_scores.detach()


def as_tensors(rows: Rows, *, device: str) -> tuple[Packed, Tensor, Tensor]:
    fields = {name: torch.from_numpy(getattr(rows, name)).to(device) for name in Packed.__dataclass_fields__}
    return Packed(**fields), torch.from_numpy(rows.targets).to(device), torch.from_numpy(rows.labels).to(device)


def tally(rows: Rows, *, by_token: Any, pair_scores: Any) -> Any:
    """[8]: loss, tokens, right pairs and pairs, each for English and Chinese."""
    token_zh = np.repeat(rows.chinese, len(by_token) // len(rows.chinese))
    pair_zh = np.repeat(rows.chinese, len(pair_scores) // len(rows.chinese))
    counted = rows.labels != IGNORE
    right = counted & (pair_scores.argmax(1) == rows.labels)
    columns = [(by_token, token_zh), (np.ones_like(by_token), token_zh), (right, pair_zh), (counted, pair_zh)]
    return np.asarray([values[zh == wanted].sum() for values, zh in columns for wanted in (False, True)])
