"""Token ids that clients send, and the details of tokens that they ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from packbert.model_export.artifact.rows import Ints

from ..errors import Invalid
from ..turns import in_turns
from .encoding import NO_SPANS, Direction, EncodedText, EncodeOptions, numbers, too_long
from .tokenizer import Tokenizer

Ids = NDArray[np.int64]
FRAME = EncodeOptions(outputs=frozenset(), spans=True)
MISPLACED = ("cls", "sep", "pad")  # special tokens that may stand only around a text's own tokens, or nowhere


async def encode_ids(
    tokenizer: Tokenizer, sequences: Sequence[Sequence[int]], options: EncodeOptions, truncate: Direction | None
) -> list[EncodedText]:
    """Each sequence between the special tokens of a text, which it may have already.

    Raises Invalid with the index of the sequence for an id outside of the vocabulary, a special token among the
    others, and too many tokens if `truncate` is None. Cannot know whether the ids are of this tokenizer.
    """
    (frame,) = await tokenizer.encode(["a"], FRAME, "right")
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
                layers=options.layers,
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
    """The ids between `before` and `after`, if they have both; else all."""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenDetails:
    """The tokens of a text or pair, as arrays: a token takes 30 bytes, as Python objects 300."""

    ids: Ints  # [length]
    spans: Ints  # [length, 2] first and end character; (0, 0) for special tokens
    special: Ints  # [length] 1 for special tokens
    words: Ints  # [length] index of the word in its text; -1 for special tokens
    sides: Ints  # [length] 0 or 1, the text of the pair; -1 for special tokens
    types: Ints  # [length] the segment that the model gets
    spelled: dict[int, str]  # index of a token -> its piece, if it is not as the vocabulary spells the id

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def own(self) -> NDArray[np.intp]:
        """The places of the text's own tokens."""
        return np.flatnonzero(self.special == 0)

    def without(self, cut: NDArray[np.intp]) -> "TokenDetails":
        """The other tokens; `cut` are places."""
        kept = np.delete(np.arange(len(self)), cut)
        arrays = {name: getattr(self, name)[kept] for name in ("ids", "spans", "special", "words", "sides", "types")}
        spelled = {n: self.spelled[at] for n, at in enumerate(kept.tolist()) if at in self.spelled}
        return TokenDetails(**arrays, spelled=spelled)

    def piece(self, at: int, tokenizer: Tokenizer) -> str:
        """Of the token `at`, as the tokenizer gave it."""
        return self.spelled[at] if at in self.spelled else tokenizer.piece(int(self.ids[at]))


def describe_tokens(tokenizer: Tokenizer, encoding: Encoding) -> TokenDetails:
    """Of a text that the tokenizer has read."""
    ids = encoding.ids
    spelled = {at: piece for at, piece in enumerate(encoding.tokens) if piece != tokenizer.piece(ids[at])}
    return TokenDetails(
        ids=np.array(ids, np.int32),
        spans=np.array(encoding.offsets, np.int32).reshape(-1, 2),
        special=np.array(encoding.special_tokens_mask, np.int32),
        words=numbers(encoding.word_ids),
        sides=numbers(encoding.sequence_ids),
        types=np.array(encoding.type_ids, np.int32),
        spelled=spelled,
    )
