"""Texts that are longer than the model's limit as windows that overlap, as transformers' pipelines make them."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.rows import Ints

from ..errors import Invalid, TooLarge
from .chunks import TextChunk, TextReader
from .encoding import EncodedText, no_tokens, numbers, to_encoded_text
from .special_tokens import reading_only

KEEP_OFFSETS = ("TemplateProcessing", "BertProcessing", "NoneType")  # post-processors that only add special tokens
STRIDE_SHARE = 8  # an eighth of the limit is shared by default, 64 tokens of 512: a seventh more tokens are computed
COUNT_MARGIN = 2  # times the limit: an estimated number of windows that is refused before all texts are read
QUESTION, CONTEXT = 0, 1  # the sides of a pair
DEFAULT_MAX_TOKENS, DEFAULT_STRIDE = 384, 128  # of transformers' question-answering pipeline
Arrays = tuple[Ints, Ints, Ints]  # ids [length], types [length], spans [length, 2] or [0, 2]


@dataclass(slots=True, eq=False, kw_only=True)
class SplittingReader(TextReader):
    """Makes at most `most` windows of a request's texts or pairs; none of them is cut."""

    most: int
    windows: int = 0  # so far
    _raw: HFTokenizer | None = None  # without a post-processor

    def read(self, end: int) -> TextChunk:
        """Raises also TooLarge for more than `most` windows, or if far more are expected."""
        chunk = TextReader.read(self, end)
        expected = self.windows + max(len(self.texts) - end, chunk.left // self.limit)
        if expected > COUNT_MARGIN * self.most:
            raise too_many_windows(f"about {expected}", self.most)
        return chunk

    def _count_windows(self, count: int) -> None:
        self.windows += count
        if self.windows > self.most:
            raise too_many_windows(f"{self.windows} or more", self.most)

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
class WindowsReader(SplittingReader):
    """Makes windows of texts. A pair that fits is a window.

    Raises Invalid for a pair that does not, and if a window would add no token.
    """

    asked_stride: int | None  # None: an eighth of the limit
    prompt: int  # the first tokens of every text, which every window begins with
    stride: int = field(init=False)  # tokens that a window shares with the window before it
    room: int = field(init=False)  # tokens of a text in a window
    added: list[int] = field(default_factory=list)  # tokens of each window that the window before it does not have

    def __post_init__(self) -> None:
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

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        text = self.texts[index]
        if not isinstance(text, str) and len(encoding) > self.limit:
            message = f"input is a pair of {len(encoding)} tokens; this model takes at most {self.limit}"
            way_out = "and a pair has no windows: shorten it, or send truncate: true instead"
            raise Invalid(f"{message}, {way_out}", code="too_long", index=index)
        self._count_windows(self._count(len(encoding)))
        whole = to_encoded_text(encoding, self.options, self.mask_id, limit=sys.maxsize)
        tokens = (whole.ids, whole.types, whole.spans)
        windows = self._split(text, encoding, tokens) if isinstance(text, str) else [tokens]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How the context of each question is split."""

    limit: int  # tokens of a window, special tokens included
    stride: int | None  # tokens that a window shares with the window before; None: the pipeline's, if there is room
    question_limit: int | None  # a question is cut to so many tokens; None: never
    align_to_words: bool  # spans are those of a token's word, as far as it lies in the window


@dataclass(slots=True, eq=False, kw_only=True)
class QuestionsReader(SplittingReader):
    """Makes windows of the contexts of pairs (question, context), each beside its question.

    Of a window, `spans` is -1 but for the tokens of the context. Raises Invalid with the index of a pair if a side has
    no tokens, or a question or a stride leaves no room; TooLarge for more than `most` windows.
    """

    asked: WindowOptions

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        sides = numbers(encoding.sequence_ids)
        counts = [int((sides == side).sum()) for side in (QUESTION, CONTEXT)]
        for name, tokens in zip(("question", "context"), counts, strict=True):
            if not tokens:
                raise no_tokens(f"the {name}", index)
        room, stride, count = self._count(index, *counts)
        starts = range(0, count * (room - stride), room - stride) if count > 1 else range(1)
        self._count_windows(count)
        return list(self._windows(index, encoding, sides, starts, room))

    def _count(self, index: int, question: int, context: int) -> tuple[int, int, int]:
        """Of so many tokens: those of the context in a window, those that two windows share, the number of windows."""
        asked, special = self.asked, self.tokenizer.num_special_tokens_to_add(True)
        kept = min(question, asked.question_limit or question)
        room = asked.limit - kept - special
        if room < 1:
            found = f"the question has {kept} tokens and a pair {special} special tokens"
            way_out = "shorten it, or send max_question_len"
            message = f"{found}: that leaves no room for the context in {asked.limit} tokens (max_seq_len); {way_out}"
            raise Invalid(message, code="too_long", index=index)
        if context <= room:
            return room, 0, 1
        stride = self._stride(index, room)
        return room, stride, 1 + -(-(context - room) // (room - stride))

    def _stride(self, index: int, room: int) -> int:
        """The stride asked for, or the default, for which a question may leave too little room."""
        default = min(self.asked.limit // 2, DEFAULT_STRIDE)
        stride = default if self.asked.stride is None else self.asked.stride
        if stride < room:
            return stride
        if self.asked.stride is None:
            return room // 2
        found = f"doc_stride is {stride}; it must be less than {room}"
        reason = f"a window holds {room} tokens of the context beside this question"
        raise Invalid(f"{found}: {reason}", code="stride", index=index)

    def _windows(
        self, index: int, encoding: Encoding, sides: Ints, starts: Sequence[int], room: int
    ) -> Iterator[EncodedText]:
        """Windows whose first tokens are `starts` among the context's; `sides` [length], -1 for special tokens."""
        whole = to_encoded_text(encoding, self.options, self.mask_id, limit=sys.maxsize)
        words, question, context = numbers(encoding.word_ids), sides == QUESTION, np.flatnonzero(sides == CONTEXT)
        first, end = int(context[0]), int(context[-1]) + 1
        is_cut = question & (np.cumsum(question) > (self.asked.question_limit or len(whole)))
        before, after = np.flatnonzero(~is_cut[:first]), np.arange(end, len(whole))
        spans = self._first_spans(self.texts[index][CONTEXT], starts)
        for start, span in zip(starts, spans, strict=True):
            window = np.arange(first + start, min(first + start + room, end))
            offsets = whole.spans[window]
            if span is not None:
                offsets[0] = span
            if self.asked.align_to_words:
                offsets = _word_spans(offsets, words[window])
            kept = np.concatenate([before, window, after])
            own = np.full((len(kept), 2), -1, np.int32)
            own[len(before) : len(before) + len(window)] = offsets
            cut = bool(is_cut.any()) and start == 0
            yield replace(whole, ids=whole.ids[kept], types=whole.types[kept], spans=own, truncated=cut)


def _word_spans(offsets: Ints, words: Ints) -> Ints:
    """[length, 2] first and end character of each token's word, or of the token if it belongs to no word.

    `words` [length] is equal for the tokens of a word, -1 for a token without a word.
    """
    is_first = np.append(True, (words[1:] != words[:-1]) | (words[1:] < 0))
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(words)) - 1
    word = np.cumsum(is_first) - 1
    return np.stack([offsets[firsts[word], 0], offsets[lasts[word], 1]], axis=-1)


def too_many_windows(count: str, most: int) -> TooLarge:
    limit = f"at most {most} are allowed (BERT_MAX_INPUTS)"
    return TooLarge(f"the request has {count} windows; {limit}: split it, or send a smaller stride")


def _cut(array: Ints, first: int, cut: tuple[int, int], end: int) -> Ints:
    """The tokens of `cut`, between those before `first` (special, prompt) and those from `end` on (special)."""
    return np.concatenate([array[:first], array[slice(*cut)], array[end:]]) if len(array) else array
