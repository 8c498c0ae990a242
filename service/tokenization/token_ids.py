"""Token ids that a client sends instead of a text, as the encoder takes them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.placement import Ints
from service.errors import Invalid
from service.tokenization.encoding import NO_SPANS, Direction, EncodedText, EncodeOptions, too_long
from service.tokenization.tokenizer import Tokenizer
from service.turns import in_turns

Ids = NDArray[np.int64]
FRAME = EncodeOptions(outputs=frozenset(), spans=True)
MISPLACED = ("cls", "sep", "pad")  # special tokens that may stand only around a text's own tokens, or nowhere


async def encode_ids(
    tokenizer: Tokenizer, sequences: Sequence[Sequence[int]], options: EncodeOptions, truncate: Direction | None
) -> list[EncodedText]:
    """Each sequence between the special tokens of a text, which it may have already.

    Raises Invalid with the index of the sequence for an id outside of the vocabulary, a special token among the
    others, and too many tokens where `truncate` is None. Cannot know whether the ids are of this tokenizer.
    """
    (frame,) = tokenizer.encode_sync(["a"], FRAME, "right")
    own = np.flatnonzero(frame.spans[:, 0] >= 0)
    before, after = frame.ids[: own[0]], frame.ids[own[-1] + 1 :]
    manifest = tokenizer.artifact.manifest
    limit, special = manifest.max_tokens, len(before) + len(after)
    encoded = []
    async for index, sequence in in_turns(enumerate(sequences)):
        ids = _without_frame(_check_vocabulary(sequence, manifest.sizes["vocabulary"], index), before, after)
        _check_special_tokens(ids, manifest.special_tokens, index)
        cut = max(0, len(ids) + special - limit)
        if cut and truncate is None:
            raise too_long(str(len(ids) + special), limit, index)
        kept = ids[cut:] if truncate == "left" else ids[: len(ids) - cut]
        encoded.append(
            EncodedText(
                ids=np.concatenate([before, kept, after]).astype(np.int32),
                types=np.full(len(kept) + special, frame.types[own[0]], np.int32),
                outputs=options.outputs,
                truncated=cut > 0,
                empty=len(kept) == 0,
                spans=NO_SPANS,
            )
        )
    return encoded


def _check_vocabulary(sequence: Sequence[int], size: int, index: int) -> Ids:
    """Raises Invalid for an id that the vocabulary does not have."""
    for worst in (min(sequence), max(sequence)) if sequence else ():
        if not 0 <= worst < size:
            message = f"input has the token id {worst}; the vocabulary of this model has the ids 0 to {size - 1}"
            raise Invalid(message, code="token_ids", index=index)
    return np.array(sequence, np.int64)


def _without_frame(ids: Ids, before: Ints, after: Ints) -> Ids:
    """The ids between `before` and `after`, where they have both."""
    end = len(ids) - len(after)
    framed = end >= len(before) and np.array_equal(ids[: len(before)], before) and np.array_equal(ids[end:], after)
    return ids[len(before) : end] if framed else ids


def _check_special_tokens(ids: Ids, special_tokens: Mapping[str, int], index: int) -> None:
    """Raises Invalid for a special token among a text's own tokens."""
    for name in MISPLACED:
        found = np.flatnonzero(ids == special_tokens.get(name, -1))
        if len(found):
            message = f"input has the {name} token (id {special_tokens[name]}) among its own tokens, at {found[0]}"
            raise Invalid(f"{message}: send the ids of one text, without padding", code="token_ids", index=index)
