"""The texts of one request on their way to windows that overlap, in the steps of an EncodingJob."""

import sys
from dataclasses import dataclass, field, replace

from tokenizers import Encoding

from service.tokenization.encoding import EncodedText, encode_each, to_encoded_text
from service.tokenization.job import EncodingJob
from service.tokenization.pieces import LongText
from service.tokenization.windows import WindowSplitter, check_window_count


@dataclass(slots=True, eq=False, kw_only=True)
class WindowsJob(EncodingJob):
    """A step gives the windows of the next texts; no text is cut. Raises TooLarge for more than `most` windows."""

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
