"""Loads a checkpoint folder in `transformers` and in our network, and compares their scores.

The only module of this package that needs `transformers`.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import BertForPreTraining

from training.data.batches import IS_NEXT
from training.model.checkpoint_files import read_checkpoint
from training.report.measure import pack_one

TEXTS = (
    ("Paris is the capital of [MASK].", "It lies on the Seine."),
    ("我今天很[MASK]心。", "因为天气真好。"),
)
ALLOWED = 1e-4


def largest_difference(folder: Path) -> float:
    """Raises ValueError if a weight is missing or unused, or the scores differ by more than ALLOWED."""
    # eager: the same operations as ours; another attention differs by rounding, which grows with the scores
    theirs, report = BertForPreTraining.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {kind: keys for kind, keys in report.items() if keys}
    if wrong:
        raise ValueError(f"{folder} does not load cleanly: {wrong}")
    ours = read_checkpoint(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    worst = 0.0
    for first, second in TEXTS:
        encoded = tokenizer.encode(first, second)
        ids, segments = torch.tensor([encoded.ids]), torch.tensor([encoded.type_ids])
        with torch.inference_mode():
            answer = theirs.eval()(input_ids=ids, token_type_ids=segments)
            scores, pair_scores = ours(pack_one(encoded.ids, segments=encoded.type_ids, masked=range(len(encoded.ids))))
        worst = max(worst, float((answer.prediction_logits[0] - scores).abs().max()))
        worst = max(worst, float((answer.seq_relationship_logits - pair_scores).abs().max()))
    if worst > ALLOWED:
        raise ValueError(f"{folder}: scores differ by {worst:.2g}, allowed {ALLOWED:.0e} (label {IS_NEXT} is next)")
    return worst
