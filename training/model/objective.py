"""Both of BERT's objectives on one batch of packed rows, and the counts for the log.

With a guide, a finished model of the same vocabulary, half of each loss is the cross-entropy to its answer.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.data.batches import IGNORE, Rows
from training.model.model import Bert, Packed
from training.model.precision import mixed_precision

GUIDED_SHARE = 0.5  # of both losses
Answers = tuple[Tensor, Tensor]  # the vocabulary scores and the next-sentence scores of a guide


def losses(
    model: Bert, packed: Packed, targets: Tensor, labels: Tensor, guide: Answers | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of both losses, the loss of every masked token, and the next-sentence scores."""
    with mixed_precision(targets.device.type):
        scores, pair_scores = model(packed)
    scores, pair_scores = scores.float(), pair_scores.float()
    by_token = functional.cross_entropy(scores, targets, reduction="none")
    judged = labels != IGNORE
    pairs = judged.sum().clamp(min=1)  # rows of lone sentences alone have none
    next_sentence = functional.cross_entropy(pair_scores, labels, ignore_index=IGNORE, reduction="sum") / pairs
    loss = by_token.mean() + next_sentence
    if guide is not None:
        guided = functional.cross_entropy(scores, guide[0].softmax(-1))
        by_pair = functional.cross_entropy(pair_scores, guide[1].softmax(-1), reduction="none")
        guided = guided + (by_pair * judged).sum() / pairs
        loss = (1 - GUIDED_SHARE) * loss + GUIDED_SHARE * guided
    return loss, by_token.detach(), pair_scores.detach()


def answers(guide: Bert, packed: Packed) -> Answers:
    """The guide's scores for the rows, without gradients."""
    with torch.no_grad(), mixed_precision(packed.ids.device.type):
        scores, pair_scores = guide(packed)
    return scores.float(), pair_scores.float()


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
