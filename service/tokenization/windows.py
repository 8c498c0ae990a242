"""Readers that make several sequences of a text: windows, as transformers' pipelines make them, or zero-shot pairs."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.rows import Ints

from ..errors import Invalid, TooLarge
from .chunks import TextChunk, TextReader
from .encoding import (
    NO_SPANS,
    EncodedText,
    encode_each,
    no_tokens,
    numbers,
    reading_only,
    to_encoded_text,
    too_long,
    word_runs,
)

KEEP_OFFSETS = ("TemplateProcessing", "BertProcessing", "NoneType")  # post-processors that only add special tokens
STRIDE_SHARE = 8  # an eighth of the limit is shared by default, 64 tokens of 512: a seventh more tokens are computed
COUNT_MARGIN = 2  # times the limit: an estimated number of windows that is refused before all texts are read
QUESTION, CONTEXT = 0, 1  # the sides of a pair
DEFAULT_MAX_TOKENS, DEFAULT_STRIDE = 384, 128  # of transformers' question-answering pipeline


@dataclass(slots=True, eq=False, kw_only=True)
class SplittingReader(TextReader):
    """Makes at most `most` windows of a request's texts or pairs, which it reads as a whole."""

    most: int
    asked_stride: int | None  # tokens that a window shares with the window before it; None: the default
    windows: int = 0  # so far
    _raw: HFTokenizer | None = None  # without a post-processor

    def read(self, end: int) -> TextChunk:
        """Raises also TooLarge for more than `most` windows, or if far more are expected."""
        chunk = TextReader.read(self, end)
        expected = self.windows + max(len(self.texts) - end, chunk.left // self.limit)
        if expected > COUNT_MARGIN * self.most:
            raise too_many_windows(f"about {expected}", self.most)
        return chunk

    def _encode(self, first: int, end: int) -> list[Encoding]:
        return encode_each(self.tokenizer, self.texts[first:end], first)

    def _starts(self, tokens: int, room: int, stride: int) -> range:
        """The first token of each window of so many tokens; a window holds `room` of them."""
        count = 1 + max(0, -(-(tokens - room) // (room - stride)))
        self.windows += count
        if self.windows > self.most:
            raise too_many_windows(f"{self.windows} or more", self.most)
        return range(0, count * (room - stride), room - stride)

    def _split(
        self,
        text: str,
        whole: EncodedText,
        before: NDArray[np.intp],
        own: slice,
        starts: range,
        room: int,
        words: Ints | None = None,
    ) -> Iterator[EncodedText]:
        """The windows of `text`, whose tokens are `own` of `whole`, each between the tokens `before` and those behind.

        `words` [length] as of `word_runs`: with it, a token's span is that of its word in the window.
        """
        spans = self._first_spans(text, starts) if len(whole.spans) else [None] * len(starts)
        for start, span in zip(starts, spans, strict=True):
            window = np.arange(own.start + start, min(own.start + start + room, own.stop))
            kept = np.concatenate([before, window, np.arange(own.stop, len(whole))])
            offsets = whole.spans[kept] if len(whole.spans) else NO_SPANS
            inner = offsets[len(before) : len(before) + len(window)]
            if span is not None:
                inner[0] = span
            if words is not None:
                firsts, ends = word_runs(words[window])
                of_words = np.stack([inner[firsts, 0], inner[ends - 1, 1]], axis=-1)
                inner[:] = np.repeat(of_words, ends - firsts, axis=0)
            yield replace(whole, ids=whole.ids[kept], types=whole.types[kept], spans=offsets)

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
    """Makes windows of texts: a text within the model's limit is a window, and so is a pair.

    Raises Invalid for a longer pair, and if a window would add no token.
    """

    prompt: int  # the first tokens of every text, which every window begins with
    stride: int = field(init=False)  # an eighth of the limit by default
    room: int = field(init=False)  # tokens of a text in a window

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
        text, tokens = self.texts[index], len(encoding) - self.limit + self.room
        if not isinstance(text, str) and tokens > self.room:
            message = f"input is a pair of {len(encoding)} tokens; this model takes at most {self.limit}"
            way_out = "and a pair has no windows: shorten it, or send truncate: true instead"
            raise Invalid(f"{message}, {way_out}", code="too_long", index=index)
        starts = self._starts(tokens, self.room, self.stride)
        whole = to_encoded_text(encoding, self.options, self.mask_id, limit=sys.maxsize)
        whole.added = tokens
        if len(starts) == 1 or not isinstance(text, str):
            return [whole]
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        first, end = int(own[0]) + self.prompt, int(own[-1]) + 1
        windows = list(self._split(text, whole, np.arange(first), slice(first, end), starts, self.room))
        for number, window in enumerate(windows):
            window.added = len(window) - self.limit + self.room - self.stride * (number > 0)
        return windows


@dataclass(slots=True, eq=False, kw_only=True)
class QuestionsReader(SplittingReader):
    """Makes windows of the contexts of pairs (question, context), each beside its question.

    Of a window, `spans` is -1 but for the tokens of the context. Raises Invalid with the index of a pair if a side has
    no tokens, or a question or a stride leaves no room; TooLarge for more than `most` windows.
    """

    question_limit: int | None  # a question is cut to so many tokens; None: never
    align_to_words: bool  # spans are those of a token's word, as far as it lies in the window

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        sides = numbers(encoding.sequence_ids)
        question, context = sides == QUESTION, np.flatnonzero(sides == CONTEXT)
        for name, tokens in (("question", question.any()), ("context", len(context))):
            if not tokens:
                raise no_tokens(f"the {name}", index)
        room = self._room(index, int(question.sum()))
        stride = self._stride(index, room) if len(context) > room else 0  # without windows no stride is too large
        starts = self._starts(len(context), room, stride)
        whole = to_encoded_text(encoding, self.options, self.mask_id, limit=sys.maxsize)
        own = slice(int(context[0]), int(context[-1]) + 1)
        whole.spans[: own.start] = -1
        is_cut = question & (np.cumsum(question) > (self.question_limit or len(whole)))
        before = np.flatnonzero(~is_cut[: own.start])
        words = numbers(encoding.word_ids) if self.align_to_words else None
        windows = list(self._split(self.texts[index][CONTEXT], whole, before, own, starts, room, words))
        windows[0].truncated = bool(is_cut.any())  # counted once for the pair
        return windows

    def _room(self, index: int, question: int) -> int:
        """Tokens of the context in a window, beside a question of so many tokens."""
        special = self.tokenizer.num_special_tokens_to_add(True)
        kept = min(question, self.question_limit or question)
        if (room := self.limit - kept - special) < 1:
            found = f"the question has {kept} tokens and a pair {special} special tokens"
            way_out = "shorten it, or send max_question_len"
            message = f"{found}: that leaves no room for the context in {self.limit} tokens (max_seq_len); {way_out}"
            raise Invalid(message, code="too_long", index=index)
        return room

    def _stride(self, index: int, room: int) -> int:
        """The stride asked for, or the default, for which a question may leave too little room."""
        stride = min(self.limit // 2, DEFAULT_STRIDE) if self.asked_stride is None else self.asked_stride
        if stride < room:
            return stride
        if self.asked_stride is None:
            return room // 2
        found = f"doc_stride is {stride}; it must be less than {room}"
        reason = f"a window holds {room} tokens of the context beside this question"
        raise Invalid(f"{found}: {reason}", code="stride", index=index)


@dataclass(slots=True, eq=False, kw_only=True)
class HypothesesReader(TextReader):
    """Makes pairs of each text with every hypothesis, as zero-shot classification asks them; only texts are cut.

    Raises Invalid for a hypothesis that leaves no room for a text, and for a text that is too long.
    """

    hypotheses: Sequence[Ints]  # the ids of each, without special tokens
    type: int = field(init=False)  # of the tokens of a text
    before: Ints = field(init=False)  # [2, length] ids and types of the special tokens before a text
    behind: list[Ints] = field(init=False)  # [2, length] of what follows the text, for each hypothesis
    rooms: list[int] = field(init=False)  # tokens of a text beside each hypothesis

    def __post_init__(self) -> None:
        pair = self.tokenizer.encode("a", "b")
        sides, tokens = numbers(pair.sequence_ids), np.array([pair.ids, pair.type_ids], np.int32)
        bounds = [place for side in (0, 1) for place in np.flatnonzero(sides == side)[[0, -1]] + [0, 1]]
        self.before, first, between, second, after = np.split(tokens, bounds, axis=1)
        self.type = int(first[1, 0])
        typed = [np.stack([ids, np.full_like(ids, second[1, 0])]) for ids in self.hypotheses]
        self.behind = [np.concatenate([between, hypothesis, after], axis=1) for hypothesis in typed]
        self.rooms = [self.limit - self.before.shape[1] - behind.shape[1] for behind in self.behind]
        self.sequences_per_text = len(self.hypotheses)
        if min(self.rooms) < 1:
            special = sum(part.shape[1] for part in (self.before, between, after))
            longest = max(map(len, self.hypotheses))
            message = f"a label in the hypothesis template has {longest} tokens; this model takes at most {self.limit}"
            reason = f"which leaves no room for a text beside {special} special tokens"
            raise Invalid(f"{message}, {reason}: shorten the template or the labels", code="candidate_labels")

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        ids = np.array(encoding.ids, np.int32)[np.array(encoding.special_tokens_mask) == 0]
        tokens, least = len(ids), min(self.rooms)
        if self.truncate is None and tokens > least:
            raise too_long(str(tokens + self.limit - least), self.limit, index)
        text, pairs = np.stack([ids, np.full_like(ids, self.type)]), list[EncodedText]()
        for behind, room in zip(self.behind, self.rooms, strict=True):
            kept = text[:, -room:] if self.truncate == "left" else text[:, :room]
            own, types = np.concatenate([self.before, kept, behind], axis=1)
            cut = not pairs and tokens > least  # counted once for the text
            outputs, empty = self.options.outputs, tokens == 0
            pairs.append(EncodedText(ids=own, types=types, outputs=outputs, truncated=cut, empty=empty, spans=NO_SPANS))
        return pairs


def too_many_windows(count: str, most: int) -> TooLarge:
    limit = f"at most {most} are allowed (BERT_MAX_INPUTS)"
    return TooLarge(f"the request has {count} windows; {limit}: split it, or send a smaller stride")
