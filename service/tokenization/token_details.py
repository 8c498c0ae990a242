"""All that the tokenizer knows of a text's tokens, for a text of any length. Does not know the model's limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Encoding

from model_export.artifact.placement import Ints
from service.tokenization.encoding import Texts
from service.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenDetails:
    """The tokens of one text or pair, as arrays: a token takes 30 bytes, as Python objects 300."""

    ids: Ints  # [length]
    spans: Ints  # [length, 2] first character and one past the last; (0, 0) for special tokens
    special: Ints  # [length] 1 for special tokens
    words: Ints  # [length] index of the word in its text; -1 for special tokens
    sides: Ints  # [length] 0 or 1, the text of the pair; -1 for special tokens
    types: Ints  # [length] the segment that the model gets
    spelled: dict[int, str]  # index of a token -> its piece, where it is not as the vocabulary spells the id

    def __len__(self) -> int:
        return len(self.ids)

    def piece(self, at: int, tokenizer: Tokenizer) -> str:
        """Of the token `at`, as the tokenizer gave it."""
        return self.spelled[at] if at in self.spelled else tokenizer.piece(int(self.ids[at]))


async def describe_tokens(
    tokenizer: Tokenizer,
    texts: Texts,
    *,
    special_tokens: bool,
    masks: bool,
    check: Callable[[int], None] = lambda tokens: None,
    queued: bool = False,
) -> list[TokenDetails]:
    """`masks` parses the mask token, as /fill-mask does; `check` gets the number of tokens so far, and may raise.

    Raises as Tokenizer.read.
    """
    count = 0

    def work(encoder: Any, chunk: Texts) -> list[TokenDetails]:
        nonlocal count
        encodings = encoder.encode_batch(list(chunk), add_special_tokens=special_tokens)
        count += sum(map(len, encodings))
        check(count)
        return [_details(one, tokenizer) for one in encodings]

    return await tokenizer.read(texts, masks, work, queued=queued)


async def count_tokens(tokenizer: Tokenizer, texts: Texts, *, special_tokens: bool, masks: bool) -> list[int]:
    """The number of tokens of each text. Raises as `describe_tokens`."""

    def work(encoder: Any, chunk: Texts) -> list[int]:
        return [len(one) for one in encoder.encode_batch(list(chunk), add_special_tokens=special_tokens)]

    return await tokenizer.read(texts, masks, work)


def _details(one: Encoding, tokenizer: Tokenizer) -> TokenDetails:
    ids = one.ids
    spelled = {at: piece for at, piece in enumerate(one.tokens) if piece != tokenizer.piece(ids[at])}
    return TokenDetails(
        ids=np.array(ids, np.int32),
        spans=np.array(one.offsets, np.int32).reshape(-1, 2),
        special=np.array(one.special_tokens_mask, np.int32),
        words=_numbers(one.word_ids),
        sides=_numbers(one.sequence_ids),
        types=np.array(one.type_ids, np.int32),
        spelled=spelled,
    )


def _numbers(values: Sequence[int | None]) -> Ints:
    """-1 for None."""
    return np.array([-1 if value is None else value for value in values], np.int32)
