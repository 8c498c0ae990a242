"""Texts that are longer than the model's limit as windows that overlap, as transformers' pipelines make them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.rows import Ints
from packbert.service.errors import Invalid, TooLarge
from packbert.service.tokenization.encoding import EncodedText, to_encoded_text
from packbert.service.tokenization.jobs import EncodingJob, Floats
from packbert.service.tokenization.special_tokens import reading_only

KEEP_OFFSETS = ("TemplateProcessing", "BertProcessing", "NoneType")  # post-processors that only add special tokens
STRIDE_SHARE = 8  # an eighth of the limit is shared by default, 64 tokens of 512: a seventh more tokens are computed
COUNT_MARGIN = 2  # times the limit: an estimated number of windows that is refused before the texts are read
Arrays = tuple[Ints, Ints, Ints]  # ids [length], types [length], spans [length, 2] or [0, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowShape:
    """How the windows of a request are cut, in tokens."""

    stride: int  # that a window shares with the one before it
    prompt: int = 0  # the first tokens of every text, which every window begins with


@dataclass(slots=True, kw_only=True, eq=False)
class WindowSplitter:
    """Splits texts into windows."""

    tokenizer: HFTokenizer
    limit: int  # tokens of a window, special tokens included
    _raw: HFTokenizer | None = field(default=None, init=False)

    def shape(self, stride: int | None, prompt: int = 0) -> WindowShape:
        """By default a stride of an eighth of the limit. Raises Invalid where a window would add no token."""
        room = max(0, self.room(prompt))
        if prompt and not room:
            message = f"the prompt has {prompt} tokens, which leaves no room for a text in a window of {self.limit}"
            raise Invalid(f"{message}: send a shorter one", code="prompt")
        chosen = min(self.limit // STRIDE_SHARE, room // 2) if stride is None else stride
        if chosen >= room:
            reason = f"a window holds {room} tokens of a text" + " beside its prompt" * (prompt > 0)
            raise Invalid(f"stride is {chosen}; it must be less than {room}: {reason}", code="stride")
        return WindowShape(stride=chosen, prompt=prompt)

    def count(self, tokens: int, shape: WindowShape) -> int:
        """The number of windows of a text of so many tokens, special tokens included."""
        return 1 + max(0, -(-(tokens - self.limit) // (self.room(shape.prompt) - shape.stride)))

    def split(self, text: str, encoding: Encoding, whole: Arrays, shape: WindowShape) -> list[Arrays]:
        """The windows of `text`, whose encoding is `whole`."""
        count = self.count(len(encoding), shape)
        if count == 1:
            return [whole]
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        first, end = int(own[0]) + shape.prompt, int(own[-1]) + 1
        room = self.room(shape.prompt)
        starts = [first + n * (room - shape.stride) for n in range(count)]
        cuts = [(start, min(start + room, end)) for start in starts]
        windows = [[_cut(array, first, cut, end) for array in whole] for cut in cuts]
        if len(whole[2]):
            for window, span in zip(windows, self.first_spans(text, [start - first for start in starts]), strict=True):
                if span is not None:
                    window[2][first] = span
        return [(ids, types, spans) for ids, types, spans in windows]

    def added(self, windows: Sequence[Arrays], shape: WindowShape) -> list[int]:
        """How many tokens of a text each of its windows has that the one before it does not have."""
        special = self.limit - self.room(shape.prompt)
        own = [len(ids) - special for ids, _, _ in windows]
        return [own[0], *(size - shape.stride for size in own[1:])]

    def first_spans(self, text: str, starts: Sequence[int]) -> Sequence[tuple[int, int] | None]:
        """The span of the first token of each window, `starts` among the text's own tokens; None: as inside the text.

        ByteLevel and RobertaProcessing take the space before a token out of its span, but not at the start of a window.
        """
        if len(starts) == 1 or type(self.tokenizer.post_processor).__name__ in KEEP_OFFSETS:
            return [None] * len(starts)
        if self._raw is None:
            self._raw = reading_only(self.tokenizer, ())
            self._raw.encode_special_tokens = self.tokenizer.encode_special_tokens
            self._raw.post_processor = None
        (raw,) = self._raw.encode_batch([text], add_special_tokens=False)
        raw.truncate(1)
        tokens = [raw, *raw.overflowing]
        alone = [self.tokenizer.post_process(tokens[start], add_special_tokens=False) for start in starts]
        return [one.offsets[0] for one in alone]

    def room(self, prompt: int) -> int:
        """Tokens of a text in a window."""
        return self.limit - self.tokenizer.num_special_tokens_to_add(False) - prompt


def expected_windows(sizes: Floats, limit: int, room: Floats | int, stride: Floats | int) -> tuple[Floats, Floats]:
    """For texts of so many tokens, special tokens included: how many windows each has, and how many tokens."""
    counts = 1 + np.maximum(0.0, np.ceil((sizes - limit) / (room - stride)))
    return counts, sizes + (counts - 1) * (limit - room + stride)


@dataclass(slots=True, eq=False, kw_only=True)
class SplittingJob(EncodingJob):
    """Texts or pairs on their way to at most `most` windows; none of them is cut."""

    splitter: WindowSplitter
    most: int
    window_owners: list[int] = field(default_factory=list)  # the text or pair of each window that was made

    @property
    def owners(self) -> Sequence[int]:
        return self.window_owners

    @property
    def expected_sequences(self) -> int:
        return int(self._expected_windows(self._expected_sizes())[0].sum())

    def _estimate_tokens(self, sizes: Floats) -> int:
        return int(self._expected_windows(sizes)[1].sum())

    def _expected_windows(self, sizes: Floats) -> tuple[Floats, Floats]:
        """For what is left, of so many tokens: how many windows each has, and how many tokens."""
        raise NotImplementedError


@dataclass(slots=True, eq=False, kw_only=True)
class WindowsJob(SplittingJob):
    """The texts of a request on their way to windows: a step gives those of the next texts.

    A pair that fits is one window. Raises Invalid for one that does not, TooLarge for more than `most` windows.
    """

    shape: WindowShape
    added: list[int] = field(default_factory=list)  # tokens, as WindowSplitter.added, of each window

    def _expected_windows(self, sizes: Floats) -> tuple[Floats, Floats]:
        return expected_windows(sizes, self.limit, self.splitter.room(self.shape.prompt), self.shape.stride)

    def sample(self) -> None:
        """Raises TooLarge where the sample shows far too many windows."""
        EncodingJob.sample(self)
        if (count := self.expected_sequences) > COUNT_MARGIN * self.most:
            raise too_many_windows(f"about {count}", self.most)

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        text = self.texts[index]
        if not isinstance(text, str) and len(encoding) > self.limit:
            raise pair_too_long(str(len(encoding)), self.limit, index)
        self._check_count(index, len(encoding))
        whole = to_encoded_text(encoding, self.options, self.mask_id, limit=sys.maxsize)
        tokens = (whole.ids, whole.types, whole.spans)
        windows = self.splitter.split(text, encoding, tokens, self.shape) if isinstance(text, str) else [tokens]
        self.window_owners += [index] * len(windows)
        self.added += self.splitter.added(windows, self.shape)
        return [replace(whole, ids=ids, types=types, spans=spans) for ids, types, spans in windows]

    def _check_count(self, index: int, tokens: int) -> None:
        """Of the windows so far, and those of text `index`, which has so many tokens."""
        count = len(self.owners) + self.splitter.count(tokens, self.shape)
        if count > self.most:
            expected = len(self.owners) + self.expected_sequences
            last = index + 1 == len(self.texts)
            raise too_many_windows(str(count) if last else f"about {max(count, expected)}", self.most)


def too_many_windows(count: str, most: int) -> TooLarge:
    limit = f"at most {most} are allowed (BERT_MAX_INPUTS)"
    return TooLarge(f"the request has {count} windows; {limit}: split it, or send a smaller stride")


def pair_too_long(size: str, limit: int, index: int) -> Invalid:
    message = f"input is a pair of {size} tokens; this model takes at most {limit}, and a pair has no windows"
    return Invalid(f"{message}: shorten it, or send truncate: true instead", code="too_long", index=index)


def _cut(array: Ints, first: int, cut: tuple[int, int], end: int) -> Ints:
    """The tokens of `cut`, between those before `first` (special, prompt) and those from `end` on (special)."""
    return np.concatenate([array[:first], array[slice(*cut)], array[end:]]) if len(array) else array
