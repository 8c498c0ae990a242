"""A text or pair as the model takes it: what is asked of the tokenizer, what it gives, and how a long text is cut.

Plain functions around the tokenizers library.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.batch import Tokens
from packbert.model_export.artifact.manifest import Side
from packbert.model_export.artifact.rows import Ints

from ..errors import Invalid, ServiceError, TokenizerFailed

T = TypeVar("T")
Text = str | tuple[str, str]
Texts = Sequence[Text]
Direction = Literal["right", "left"]  # the side of a text that is cut off
INLINE_CHARACTERS = 1000  # are tokenized on the event loop, in under 1 ms; a thread would add 0.1 ms
NO_SPANS = np.empty((0, 2), np.int32)
PANIC = "PanicException"  # of the tokenizers library: a BaseException, whose class cannot be imported
log = logging.getLogger("service")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """What a task needs for each of its texts, from the tokenizer and from the model."""

    outputs: frozenset[str]  # as Tokens.outputs; top_k and targets likewise
    top_k: int = 1
    targets: tuple[int, ...] = ()
    masks: bool = False  # parse mask tokens and return their positions
    special_tokens: bool = False  # read all special tokens in a text as such
    spans: bool = False
    words: bool = False
    pooled_from: int = 0  # as Tokens.pooled_from: the tokens of a prompt that pooling leaves out
    layers: tuple[int, ...] = ()  # as Tokens.layers
    side: Side | None = None  # of a model with vectors of tokens


@dataclass(slots=True, kw_only=True, eq=False)
class EncodedText(Tokens):
    """A text or pair for the encoder, with what the tasks need to know of its text."""

    truncated: bool = False
    # the text, or a side of the pair, has no tokens of its own: also if all characters are zero-width
    empty: bool = False
    spans: Ints  # [length, 2] first and end character of each token, -1 for special tokens; NO_SPANS if not asked for
    words: tuple[slice, ...] = ()  # the tokens of each word, if asked for; special tokens belong to none
    added: int | None = None  # of a window: its tokens that the window before it does not have; None: it is none


@dataclass(frozen=True, slots=True, eq=False)
class PromptedTexts(Sequence[Text]):
    """Texts with a prompt before each, put together when they are read: 2,048 times a long prompt would be 200 MB."""

    prompt: str
    texts: Texts  # of a pair, before the first text

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, at: Any) -> Any:  # an index or a slice
        if isinstance(at, slice):
            return PromptedTexts(self.prompt, self.texts[at])
        text = self.texts[at]
        return self.prompt + text if isinstance(text, str) else (self.prompt + text[0], text[1])


class TokenIds(list[list[int]]):
    """The ids of sequences, which a client sends in the place of texts."""


def reading_only(tokenizer: HFTokenizer, read: Collection[int]) -> HFTokenizer:
    """A tokenizer that shares the model of `tokenizer`, and of the special tokens reads only those with the ids `read`.

    In it these are no special tokens, so that `encode_special_tokens` does not make them text.
    """
    made = HFTokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        setattr(made, part, getattr(tokenizer, part))
    tokens = sorted(tokenizer.get_added_tokens_decoder().items())
    for token_id, token in tokens:
        token.special = token.special and token_id not in read
    for special, group in groupby((token for _, token in tokens), lambda token: token.special):
        add = made.add_special_tokens if special else made.add_tokens
        add(list(group))
    made.encode_special_tokens = True
    return made


def guard(work: Callable[[], T], index: int | None = None) -> T:
    """The result of `work`. Raises TokenizerFailed if the tokenizers library raises or panics on the text `index`.

    A panic is no Exception: it would pass the endpoint and leave the request without the standard error body.
    """
    try:
        return work()
    except ServiceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        reason = f"{type(error).__name__}: {error}"[:200]
        log.error("the tokenizer failed: %s", reason)
        raise TokenizerFailed(f"the tokenizer failed on this input ({reason}): change it", index=index) from error


def encode_each(tokenizer: HFTokenizer, texts: Texts, first: int) -> list[Encoding]:
    """With special tokens. Raises TokenizerFailed with the index of the first text that fails alone.

    `first` is the index of the first text in its request.
    """
    try:
        return guard(lambda: _encode_batch(tokenizer, texts), first)
    except TokenizerFailed:
        if len(texts) == 1:
            raise
        return [one for i, text in enumerate(texts) for one in encode_each(tokenizer, [text], first + i)]


def no_tokens(name: str, index: int) -> Invalid:
    fault = f"{name} has no tokens: it is empty, or holds only spaces and control characters"
    return Invalid(fault, code="empty", index=index)


def too_long(size: str, limit: int, index: int) -> Invalid:
    message = f"input has {size} tokens; this model takes at most {limit}: shorten it or send truncate: true"
    return Invalid(message, code="too_long", index=index)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each side to keep: the longer side is cut first; on a tie the second keeps the odd token."""
    shorter = min(first, second, room // 2)
    if first + second <= room:
        return first, second
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


def to_encoded_text(
    encoding: Encoding, options: EncodeOptions, mask_id: int, *, limit: int, left: bool = False
) -> EncodedText:
    """The tokens of `encoding`, which has the special tokens; all but `limit` are cut off, on the left or the right."""
    special = encoding.special_tokens_mask
    empty = not {0, 1} <= set(encoding.sequence_ids) if encoding.n_sequences > 1 else all(special)
    cut, unattended = max(0, len(encoding) - limit), 0
    kept = _kept_positions(encoding, limit, left=left) if cut else slice(None)
    ids, types = np.array(encoding.ids, np.int32)[kept], np.array(encoding.type_ids, np.int32)[kept]
    spans, words = NO_SPANS, tuple[slice, ...]()
    if options.spans:
        spans = np.array(encoding.offsets, np.int32)
        spans[np.array(special, bool)] = -1
        spans = spans[kept]
    if options.words:
        word_of_token = np.where(special, -1, numbers(encoding.word_ids))[kept]
        firsts, ends = word_runs(word_of_token)
        runs = map(slice, firsts.tolist(), ends.tolist())
        words = tuple(run for run in runs if word_of_token[run.start] >= 0)
    if (side := options.side) is not None:  # of ColBERT: a marker after [CLS], and masks up to a fixed length
        filler = np.full(side.max_tokens - len(ids) if side.fills else 0, mask_id, np.int32)
        ids = np.concatenate([ids[:1], np.array(side.marker, np.int32), ids[1:], filler])
        types, unattended = np.zeros_like(ids), 0 if side.attends_filler else len(filler)
    pooled_from = options.pooled_from
    if pooled_from:  # but for [CLS], which is left out, and the last token, which is not
        pooled_from = min(max(pooled_from - cut * left, 1), len(ids) - 1)
    return EncodedText(
        ids=ids,
        types=types,
        unattended=unattended,
        outputs=options.outputs,
        masks=tuple(np.flatnonzero(ids == mask_id).tolist()) if options.masks else (),
        top_k=options.top_k,
        targets=options.targets,
        layers=options.layers,
        pooled_from=pooled_from,
        truncated=cut > 0,
        empty=empty,
        spans=spans,
        words=words,
    )


def _encode_batch(tokenizer: HFTokenizer, texts: Texts) -> list[Encoding]:
    """A single short text takes `encode`, which keeps the GIL: 15 us faster than `encode_batch`, which releases it."""
    text = texts[0]
    sides = (text,) if isinstance(text, str) else text
    if len(texts) > 1 or sum(map(len, sides)) > INLINE_CHARACTERS:
        return tokenizer.encode_batch(list(texts))
    return [tokenizer.encode(*sides)]


def _kept_positions(encoding: Encoding, limit: int, *, left: bool) -> NDArray[np.intp]:
    """[limit] positions: the special tokens, and of each side of a pair as many tokens as `longest_first` says."""
    owners = numbers(encoding.sequence_ids)
    special = np.flatnonzero(owners < 0)
    sides = [np.flatnonzero(owners == side) for side in range(encoding.n_sequences)]
    room = limit - len(special)
    sizes = longest_first(len(sides[0]), len(sides[1]), room) if len(sides) > 1 else (room,)
    kept = [side[len(side) - size :] if left else side[:size] for side, size in zip(sides, sizes, strict=True)]
    return np.sort(np.concatenate([special, *kept]))


def numbers(values: Sequence[int | None]) -> Ints:
    """-1 for None."""
    return np.array([-1 if value is None else value for value in values], np.int32)


def word_runs(words: Ints) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first token of each word, and the end behind its last token.

    `words` [length] is equal for the tokens of a word, -1 for a token that belongs to none and is a run of its own. A
    word is what the tokenizer's pre-tokenizer makes, as transformers' `word_ids`: in Chinese a character, if the
    tokenizer splits them.
    """
    firsts = np.flatnonzero(np.append(True, (words[1:] != words[:-1]) | (words[1:] < 0)))
    return firsts, np.append(firsts[1:], len(words))
