"""Texts that are longer than the model's limit as windows that overlap, as the tokenizers library's truncation makes
them for transformers' pipelines (`return_overflowing_tokens`, `stride`). The library copies every token of a window as
a string and holds the GIL meanwhile: a second for a million tokens. So windows are slices of the text's arrays."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from model_export.artifact.placement import Ints
from service.errors import Invalid, TooLarge
from service.tokenization.encoding import EncodedText, encode_each, to_encoded_text
from service.tokenization.job import EncodingJob
from service.tokenization.pieces import LongText

KEEP_OFFSETS = ("TemplateProcessing", "BertProcessing", "NoneType")  # post-processors that only add special tokens
Arrays = tuple[Ints, Ints, Ints]  # ids [length], types [length], spans [length, 2] or [0, 2]


@dataclass(slots=True, kw_only=True, eq=False)
class WindowSplitter:
    """Splits texts into windows. Knows nothing of requests, nor of the outputs that are requested for a window."""

    tokenizer: HFTokenizer
    limit: int  # tokens of a window, special tokens included
    _raw: HFTokenizer | None = field(default=None, init=False)

    def check_stride(self, stride: int) -> None:
        """Raises Invalid where a window would add no token to the one before it."""
        if stride >= self._room:
            reason = f"a window holds {max(0, self._room)} tokens of a text"
            raise Invalid(f"stride is {stride}; it must be less than {self._room}: {reason}", code="stride")

    def count(self, tokens: int, stride: int) -> int:
        """The number of windows of a text of so many tokens, special tokens included."""
        return 1 + max(0, -(-(tokens - self.limit) // (self._room - stride)))

    def split(self, text: str, encoding: Encoding, whole: Arrays, stride: int) -> list[Arrays]:
        """The windows of `text`, whose encoding is `whole`; each shares `stride` tokens with the one before it."""
        count = self.count(len(encoding), stride)
        if count == 1:
            return [whole]
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        first, end = int(own[0]), int(own[-1]) + 1
        starts = [first + n * (self._room - stride) for n in range(count)]
        cuts = [(start, min(start + self._room, end)) for start in starts]
        windows = [[_cut(array, first, cut, end) for array in whole] for cut in cuts]
        if len(whole[2]) and type(self.tokenizer.post_processor).__name__ not in KEEP_OFFSETS:
            for window, span in zip(windows, self.first_spans(text, [start - first for start in starts]), strict=True):
                window[2][first] = span
        return [(ids, types, spans) for ids, types, spans in windows]

    def first_spans(self, text: str, starts: Sequence[int]) -> list[tuple[int, int]]:
        """The span of the first token of each window, `starts` among the text's own tokens.

        ByteLevel and RobertaProcessing take the space before a token out of its span, but not at the start of a window.
        """
        if self._raw is None:
            self._raw = HFTokenizer.from_str(self.tokenizer.to_str())
            self._raw.encode_special_tokens = self.tokenizer.encode_special_tokens
            self._raw.post_processor = None
        (raw,) = self._raw.encode_batch([text], add_special_tokens=False)
        raw.truncate(1)
        tokens = [raw, *raw.overflowing]
        alone = [self.tokenizer.post_process(tokens[start], add_special_tokens=False) for start in starts]
        return [one.offsets[0] for one in alone]

    @property
    def _room(self) -> int:
        return self.limit - self.tokenizer.num_special_tokens_to_add(False)


@dataclass(slots=True, eq=False, kw_only=True)
class WindowsJob(EncodingJob):
    """The texts of a request on their way to windows: a step gives those of the next texts; no text is cut.

    Raises TooLarge for more than `most` windows.
    """

    splitter: WindowSplitter
    stride: int  # tokens that a window shares with the one before it
    most: int
    owners: list[int] = field(default_factory=list)  # the text of each window that was made

    def _encode(self, first: int, end: int) -> list[EncodedText]:
        windows: list[EncodedText] = []
        for index, encoding in enumerate(encode_each(self.tokenizer, self.texts[first:end], first), first):
            whole = to_encoded_text(encoding, self.options, self.mask_id, limit=sys.maxsize)
            windows += self._split(index, encoding, whole)
        return windows

    def _start_long(self, index: int) -> LongText:
        return LongText(self.tokenizer, self.cuts, self.texts[index], sys.maxsize, truncate=None, count_all=True)

    def _check_long(self, index: int, long: LongText) -> None:  # noqa: ARG002
        self._check_count(long.tokens)

    def _finish_long(self, index: int, long: LongText) -> list[EncodedText]:
        encoding, offsets = long.encoding()
        whole = to_encoded_text(encoding, self.options, self.mask_id, limit=sys.maxsize)
        if self.options.spans:
            whole.spans[whole.spans[:, 0] >= 0] = offsets
        return self._split(index, encoding, replace(whole, empty=long.empty))

    def _split(self, index: int, encoding: Encoding, whole: EncodedText) -> list[EncodedText]:
        self._check_count(len(encoding))
        text = self.texts[index]
        assert isinstance(text, str)  # a pair has no windows
        windows = self.splitter.split(text, encoding, (whole.ids, whole.types, whole.spans), self.stride)
        self.owners += [index] * len(windows)
        return [replace(whole, ids=ids, types=types, spans=spans) for ids, types, spans in windows]

    def _check_count(self, tokens: int) -> None:
        """Of the windows so far, and of those of a text of so many tokens."""
        check_window_count(len(self.owners) + self.splitter.count(tokens, self.stride), self.most)


def check_window_count(count: int, most: int) -> None:
    """Raises TooLarge for a request of more than `most` windows, before they are made."""
    if count > most:
        limit = f"at most {most} are allowed (BERT_MAX_INPUTS)"
        raise TooLarge(f"the request has {count} windows or more; {limit}: split it, or send a smaller stride")


def _cut(array: Ints, first: int, cut: tuple[int, int], end: int) -> Ints:
    """The tokens of `cut`, between the special tokens before `first` and from `end` on."""
    return np.concatenate([array[:first], array[slice(*cut)], array[end:]]) if len(array) else array
