"""All that the tokenizer knows of a text's tokens, for a text of any length. Does not know the model's limit."""

from dataclasses import dataclass
from typing import Any

from service.tokenization.encoding import Texts
from service.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenDetails:
    """The tokens of one text or pair; each list has one item per token."""

    ids: list[int]
    pieces: list[str]  # as the vocabulary spells them
    spans: list[tuple[int, int]]  # first character and one past the last; (0, 0) for special tokens
    special: list[int]  # 1 for special tokens
    words: list[int | None]  # index of the word in its text; None for special tokens
    sides: list[int | None]  # 0 or 1, the text of the pair; None for special tokens
    types: list[int]  # the segment that the model gets


async def describe_tokens(
    tokenizer: Tokenizer, texts: Texts, *, special_tokens: bool, masks: bool
) -> list[TokenDetails]:
    """`masks` parses the mask token, as /fill-mask does. Raises Invalid for a text with too many characters."""

    def work(encoder: Any, chunk: Texts) -> list[TokenDetails]:
        return [
            TokenDetails(
                ids=one.ids,
                pieces=one.tokens,
                spans=one.offsets,
                special=one.special_tokens_mask,
                words=one.word_ids,
                sides=one.sequence_ids,
                types=one.type_ids,
            )
            for one in encoder.encode_batch(list(chunk), add_special_tokens=special_tokens)
        ]

    return await tokenizer.read(texts, masks, work)


async def count_tokens(tokenizer: Tokenizer, texts: Texts, *, special_tokens: bool, masks: bool) -> list[int]:
    """The number of tokens of each text. Raises as `describe_tokens`."""

    def work(encoder: Any, chunk: Texts) -> list[int]:
        return [len(one) for one in encoder.encode_batch(list(chunk), add_special_tokens=special_tokens)]

    return await tokenizer.read(texts, masks, work)
