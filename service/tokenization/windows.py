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


def expected_windows(sizes: Floats, limit: int, room: Floats | int, stride: Floats | int) -> tuple[Floats, Floats]:
    """For texts of so many tokens, special tokens included: how many windows each has, and how many tokens."""
    counts = 1 + np.maximum(0.0, np.ceil((sizes - limit) / (room - stride)))
    return counts, sizes + (counts - 1) * (limit - room + stride)


@dataclass(slots=True, eq=False, kw_only=True)
class SplittingJob(EncodingJob):
    """Texts or pairs on their way to at most `most` windows; none of them is cut."""

    most: int
    owners: list[int] = field(init=False)  # the text or pair of each window that was made
    _raw: HFTokenizer | None = field(default=None, init=False)  # without a post-processor

    def __post_init__(self) -> None:
        EncodingJob.__post_init__(self)
        self.owners = []

    @property
    def expected_sequences(self) -> int:
        return int(self._expected_windows(self._expected_sizes())[0].sum())

    def _estimate_tokens(self, sizes: Floats) -> int:
        return int(self._expected_windows(sizes)[1].sum())

    def _expected_windows(self, sizes: Floats) -> tuple[Floats, Floats]:
        """For what is left, of so many tokens: how many windows each has, and how many tokens."""
        raise NotImplementedError

    def _first_spans(self, text: str, starts: Sequence[int]) -> Sequence[tuple[int, int] | None]:
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


@dataclass(slots=True, eq=False, kw_only=True)
class WindowsJob(SplittingJob):
    """The texts of a request on their way to windows: a step gives those of the next texts.

    A pair that fits is one window. Raises Invalid for one that does not, and where a window would add no token;
    TooLarge for more than `most` windows.
    """

    asked_stride: int | None  # None: an eighth of the limit
    prompt: int  # the first tokens of every text, which every window begins with
    stride: int = field(init=False)  # tokens that a window shares with the one before it
    room: int = field(init=False)  # tokens of a text in a window
    added: list[int] = field(default_factory=list)  # tokens of each window that the one before it does not have

    def __post_init__(self) -> None:
        SplittingJob.__post_init__(self)
        self.room = self.limit - self.tokenizer.num_special_tokens_to_add(False) - self.prompt
        room = max(0, self.room)
        if self.prompt and not room:
            fault = f"the prompt has {self.prompt} tokens, which leaves no room for a text in a window of {self.limit}"
            raise Invalid(f"{fault}: send a shorter one", code="prompt")
        stated = self.asked_stride
        self.stride = min(self.limit // STRIDE_SHARE, room // 2) if stated is None else stated
        if self.stride >= room:
            reason = f"a window holds {room} tokens of a text" + " beside its prompt" * (self.prompt > 0)
            raise Invalid(f"stride is {self.stride}; it must be less than {room}: {reason}", code="stride")

    def _expected_windows(self, sizes: Floats) -> tuple[Floats, Floats]:
        return expected_windows(sizes, self.limit, self.room, self.stride)

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
        windows = self._split(text, encoding, tokens) if isinstance(text, str) else [tokens]
        self.owners += [index] * len(windows)
        own = [len(ids) - self.limit + self.room for ids, _, _ in windows]
        self.added += [own[0], *(size - self.stride for size in own[1:])]
        return [replace(whole, ids=ids, types=types, spans=spans) for ids, types, spans in windows]

    def _split(self, text: str, encoding: Encoding, whole: Arrays) -> list[Arrays]:
        """The windows of `text`, whose encoding is `whole`."""
        count = self._count(len(encoding))
        if count == 1:
            return [whole]
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        first, end = int(own[0]) + self.prompt, int(own[-1]) + 1
        starts = [n * (self.room - self.stride) for n in range(count)]
        cuts = [(first + start, min(first + start + self.room, end)) for start in starts]
        windows = [[_cut(array, first, cut, end) for array in whole] for cut in cuts]
        if len(whole[2]):
            for window, span in zip(windows, self._first_spans(text, starts), strict=True):
                if span is not None:
                    window[2][first] = span
        return [(ids, types, spans) for ids, types, spans in windows]

    def _count(self, tokens: int) -> int:
        """The number of windows of a text of so many tokens, special tokens included."""
        return 1 + max(0, -(-(tokens - self.limit) // (self.room - self.stride)))

    def _check_count(self, index: int, tokens: int) -> None:
        """Of the windows so far, and those of text `index`, which has so many tokens."""
        count = len(self.owners) + self._count(tokens)
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
