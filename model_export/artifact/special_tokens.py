"""A checkpoint's own special tokens, which a text may spell: `[E1]` around an entity."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

MAX_NAMED = 8


def own_special_tokens(tokenizer: Tokenizer, standard: Mapping[str, int]) -> dict[int, str]:
    """id -> spelling, in the order of the ids; without `standard` tokens and those that the tokenizer adds itself."""
    frame = tokenizer.encode("", "")
    added = {token_id for token_id, special in zip(frame.ids, frame.special_tokens_mask, strict=True) if special}
    tokens = sorted(tokenizer.get_added_tokens_decoder().items())
    others = {*standard.values(), *added}
    return {token_id: token.content for token_id, token in tokens if token.special and token_id not in others}


def describe_own(tokenizer: Tokenizer, standard: Mapping[str, int]) -> str:
    """What becomes of its own special tokens in a text, with the first of them; empty if there are none."""
    own = list(own_special_tokens(tokenizer, standard).values())
    if not own:
        return ""
    more = f" and {len(own) - MAX_NAMED} more" if len(own) > MAX_NAMED else ""
    return f"{', '.join(own[:MAX_NAMED])}{more} are read in a text; the standard ones with special_tokens: true"


def describe_own_of_file(path: Path, standard: Mapping[str, int]) -> str:
    """`describe_own` of a tokenizer.json."""
    return describe_own(Tokenizer.from_file(str(path)), standard)
