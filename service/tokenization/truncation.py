"""Texts that are longer than the model's limit: which tokens are kept, and whether there is room for any."""

from typing import Literal

from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from service.errors import Invalid

Text = str | tuple[str, str]
Direction = Literal["right", "left"]  # the side of a text that is cut off


def check_room(tokenizer: HFTokenizer, text: Text, limit: int, index: int) -> None:
    """Raises Invalid where the model's limit leaves no room for one token of each text beside the special tokens."""
    is_pair = not isinstance(text, str)
    special = tokenizer.num_special_tokens_to_add(is_pair)
    if limit - special < 1 + is_pair:
        kind, texts = ("pair", "two texts") if is_pair else ("text", "a text")
        message = f"this model takes at most {limit} tokens, and a {kind} has {special} special tokens"
        raise Invalid(f"{message}: there is no room for {texts}, truncated or not", code="too_long", index=index)


def truncate_text(tokenizer: HFTokenizer, text: Text, limit: int, direction: Direction) -> Encoding:
    """`text` with `limit` tokens, special tokens included."""
    if isinstance(text, str):
        (first,) = tokenizer.encode_batch([text], add_special_tokens=False)
        first.truncate(limit - tokenizer.num_special_tokens_to_add(False), direction=direction)
        return tokenizer.post_process(first)
    first, second = tokenizer.encode_batch(list(text), add_special_tokens=False)
    keep = longest_first(len(first), len(second), limit - tokenizer.num_special_tokens_to_add(True))
    for side, kept in zip((first, second), keep, strict=True):
        side.truncate(kept, direction=direction)
    return tokenizer.post_process(first, second)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each side to keep: the longer side is cut first; on a tie the second keeps the odd token."""
    shorter = min(first, second, room // 2)
    if first + second <= room:
        return first, second
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
