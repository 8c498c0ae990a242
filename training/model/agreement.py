"""The third loss: the vector of [CLS] and the mean of a sentence agree with a teacher's vector of it."""

import torch
from torch import Tensor
from torch.nn import functional

from training.data.sentences import SentenceRows
from training.model.model import Bert, Packed
from training.model.precision import mixed_precision

TEMPERATURE = 0.05  # of the softmax over the sentences of the batch
CONTRAST = 0.25  # weight of the comparison with the other sentences of the batch
WEIGHT = 2.0  # of the whole loss, beside the other two


def agreement(model: Bert, packed: Packed, owners: Tensor, wanted: Tensor) -> Tensor:
    """For [CLS] and mean: 1 - cosine to the wanted vector, and the cross-entropy of the cosines to those of the batch.

    owners: [rows * length]; wanted: [sentences, hidden], zeros where unused; see SentenceRows.
    """
    with mixed_precision(wanted.device.type):
        hidden = model.encoder(packed).flatten(0, 1).float()
    sums = hidden.new_zeros(len(wanted) + 1, hidden.shape[1]).index_add(0, owners, hidden)
    used = wanted.abs().sum(1) > 0
    near = (wanted @ wanted.T / TEMPERATURE).masked_fill(~used, -1e4).softmax(1)
    loss = hidden.new_zeros(())
    for vectors in (hidden[packed.starts], sums[:-1]):
        unit = functional.normalize(vectors, dim=1)
        apart = 1 - (unit * wanted).sum(1)
        cosines = (unit @ wanted.T / TEMPERATURE).masked_fill(~used, -1e4)
        contrast = functional.cross_entropy(cosines, near, reduction="none")
        loss = loss + ((apart + CONTRAST * contrast) * used).sum() / used.sum()
    return WEIGHT * loss


def sentence_tensors(rows: SentenceRows, *, device: str) -> tuple[Packed, Tensor, Tensor]:
    """The arguments of `agreement` after the model."""
    tensors = {name: torch.from_numpy(getattr(rows, name)).to(device) for name in SentenceRows.__dataclass_fields__}
    owners, wanted = tensors.pop("owners"), tensors.pop("wanted")
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return Packed(**tensors, segments=torch.zeros_like(tensors["ids"]), masked=none), owners, wanted
