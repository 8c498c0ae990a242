"""Questions with contexts, and texts with hypotheses, on their way to sequences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.rows import Ints
from packbert.service.errors import Invalid
from packbert.service.tokenization.encoding import NO_SPANS, EncodedText, no_tokens, numbers, too_long
from packbert.service.tokenization.jobs import EncodingJob, Floats
from packbert.service.tokenization.windows import SplittingJob, expected_windows, too_many_windows

QUESTION, CONTEXT = 0, 1  # the sides of a pair
DEFAULT_MAX_TOKENS, DEFAULT_STRIDE = 384, 128  # of transformers' pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How the context of each question is split."""

    limit: int  # tokens of a window, special tokens included
    stride: int | None  # tokens that a window shares with the one before it; None: the pipeline's, if there is room
    question_limit: int | None  # a question is cut to so many tokens; None: never
    align_to_words: bool  # spans are those of a token's word, as far as it lies in the window


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    """The tokens of a question and its whole context, with special tokens; all arrays [length]."""

    ids: Ints
    types: Ints
    sides: Ints  # QUESTION, CONTEXT; -1 for special tokens
    words: Ints  # of the context: equal for the tokens of one word
    offsets: Ints  # [length, 2] first and end character in the context, for its tokens

    @classmethod
    def of(cls, encoding: Encoding) -> "_Pair":
        ids, types = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int32)
        sides, words = numbers(encoding.sequence_ids), numbers(encoding.word_ids)
        return cls(ids=ids, types=types, sides=sides, words=words, offsets=np.array(encoding.offsets, np.int32))


@dataclass(slots=True, eq=False, kw_only=True)
class QuestionsJob(SplittingJob):
    """Pairs (question, context) on their way to windows: a step gives those of the next pairs.

    Of a window, `spans` is -1 but for the tokens of the context. Raises Invalid where a side has no tokens, or where a
    question or a stride leaves no room, with the index of the pair; TooLarge for more than `most` windows.
    """

    asked: WindowOptions

    def _expected_windows(self, sizes: Floats) -> tuple[Floats, Floats]:
        special = self._special
        characters = np.array([len(text[QUESTION]) for text in self.texts[self.position :]])
        shares = characters / np.maximum(self._sizes[self.position :], 1)
        questions = np.rint((sizes - special) * shares)
        kept = np.minimum(questions, self.asked.question_limit or self.asked.limit)
        rooms = np.maximum(self.asked.limit - kept - special, 1)
        stride = self._asked_stride()
        fitting = rooms // 2 if self.asked.stride is None else rooms - 1  # a stated one that is too large is refused
        strides = np.where(stride < rooms, stride, fitting)
        return expected_windows(sizes - questions + kept, self.asked.limit, rooms, strides)

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        pair = _Pair.of(encoding)
        counts = [int((pair.sides == side).sum()) for side in (QUESTION, CONTEXT)]
        for name, tokens in zip(("question", "context"), counts, strict=True):
            if not tokens:
                raise no_tokens(f"the {name}", index)
        room, stride, count = self._count(index, *counts)
        starts = range(0, count * (room - stride), room - stride) if count > 1 else range(1)
        self.owners += [index] * count
        return list(self._windows(index, pair, starts, room))

    def _count(self, index: int, question: int, context: int) -> tuple[int, int, int]:
        """Of so many tokens: those of the context in a window, those that two windows share, the number of windows."""
        asked, special = self.asked, self._special
        kept = min(question, asked.question_limit or question)
        room = asked.limit - kept - special
        if room < 1:
            found = f"the question has {kept} tokens and a pair {special} special tokens"
            way_out = "shorten it, or send max_question_len"
            message = f"{found}: that leaves no room for the context in {asked.limit} tokens (max_seq_len); {way_out}"
            raise Invalid(message, code="too_long", index=index)
        if context <= room:
            count, stride = 1, 0
        else:
            stride = self._stride(index, room)
            count = 1 + -(-(context - room) // (room - stride))
        if (made := len(self.owners) + count) > self.most:
            raise too_many_windows(f"{made} or more", self.most)
        return room, stride, count

    def _asked_stride(self) -> int:
        """The stated one, or the default; a question may leave too little room for it."""
        return min(self.asked.limit // 2, DEFAULT_STRIDE) if self.asked.stride is None else self.asked.stride

    def _stride(self, index: int, room: int) -> int:
        stride = self._asked_stride()
        if stride < room:
            return stride
        if self.asked.stride is None:
            return room // 2
        found = f"doc_stride is {stride}; it must be less than {room}"
        reason = f"a window holds {room} tokens of the context beside this question"
        raise Invalid(f"{found}: {reason}", code="stride", index=index)

    def _windows(self, index: int, pair: _Pair, starts: Sequence[int], room: int) -> Iterator[EncodedText]:
        """Windows whose first tokens are `starts` among the context's."""
        context = np.flatnonzero(pair.sides == CONTEXT)
        first, end = int(context[0]), int(context[-1]) + 1
        before = np.arange(first)
        is_cut = np.zeros(first, bool)
        if self.asked.question_limit is not None:
            is_cut = np.cumsum(pair.sides[:first] == QUESTION) > self.asked.question_limit
            is_cut &= pair.sides[:first] == QUESTION
        after = np.arange(end, len(pair.ids))
        spans = self._first_spans(self.texts[index][CONTEXT], starts)
        for start, span in zip(starts, spans, strict=True):
            window = np.arange(first + start, min(first + start + room, end))
            offsets = pair.offsets[window]
            if span is not None:
                offsets[0] = span
            if self.asked.align_to_words:
                offsets = _word_spans(offsets, pair.words[window])
            kept = np.concatenate([before[~is_cut], window, after])
            place = np.full((len(kept), 2), -1, np.int32)
            place[len(kept) - len(after) - len(window) : len(kept) - len(after)] = offsets
            yield EncodedText(
                ids=pair.ids[kept],
                types=pair.types[kept],
                outputs=self.options.outputs,
                truncated=bool(is_cut.any()) and start == 0,
                empty=False,
                spans=place,
            )


def _word_spans(offsets: Ints, words: Ints) -> Ints:
    """[length, 2] first and end character of each token's word; of a token without a word, those of the token."""
    is_first = np.append(True, (words[1:] != words[:-1]) | (words[1:] < 0))
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(words)) - 1
    word = np.cumsum(is_first) - 1
    return np.stack([offsets[firsts[word], 0], offsets[lasts[word], 1]], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class PairFrame:
    """The special tokens of a pair: before, between and after its texts; [2, length] ids and types of each."""

    before: Ints
    between: Ints
    after: Ints
    types: tuple[int, int]  # of the tokens of both texts

    @classmethod
    def of(cls, tokenizer: HFTokenizer) -> "PairFrame":
        pair = tokenizer.encode("a", "b")
        first, second = ([at for at, side in enumerate(pair.sequence_ids) if side == one] for one in (0, 1))
        tokens = np.array([pair.ids, pair.type_ids], np.int32)
        before, between = tokens[:, : first[0]], tokens[:, first[-1] + 1 : second[0]]
        return cls(before, between, tokens[:, second[-1] + 1 :], (pair.type_ids[first[0]], pair.type_ids[second[0]]))

    @property
    def size(self) -> int:
        return sum(part.shape[1] for part in (self.before, self.between, self.after))

    def join(self, first: Ints, second: Ints) -> Ints:
        """[2, length]: ids and types of the pair of two texts' ids."""
        texts = [
            np.stack([ids, np.full_like(ids, kind)]) for ids, kind in zip((first, second), self.types, strict=True)
        ]
        return np.concatenate([self.before, texts[0], self.between, texts[1], self.after], axis=1)


@dataclass(slots=True, eq=False, kw_only=True)
class HypothesesJob(EncodingJob):
    """The texts of a request on their way to pairs: a step gives all pairs of the next texts.

    Raises Invalid for a hypothesis that leaves no room for a text, and as EncodingJob for a text that is too long.
    """

    hypotheses: Sequence[Ints]  # the ids of each, without special tokens
    frame: PairFrame
    rooms: list[int] = field(init=False)  # tokens of a text beside each hypothesis

    def __post_init__(self) -> None:
        EncodingJob.__post_init__(self)
        self.sequences_per_text = len(self.hypotheses)
        self.rooms = [self.limit - self.frame.size - len(ids) for ids in self.hypotheses]
        self.owners = [index for index in range(len(self.texts)) for _ in self.hypotheses]
        if (least := min(self.rooms)) < 1:
            longest = self.limit - self.frame.size - least
            message = f"a label in the hypothesis template has {longest} tokens; this model takes at most {self.limit}"
            reason = f"which leaves no room for a text beside {self.frame.size} special tokens"
            raise Invalid(f"{message}, {reason}: shorten the template or the labels", code="candidate_labels")

    def _estimate_tokens(self, sizes: Floats) -> int:
        return int(sum(np.minimum(sizes + len(ids), self.limit).sum() for ids in self.hypotheses))

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        ids = own_ids(encoding)
        tokens = len(ids)
        if self.truncate is None and tokens > (room := min(self.rooms)):
            raise too_long(str(tokens + self.limit - room), self.limit, index)
        pairs = []
        for number, (hypothesis, room) in enumerate(zip(self.hypotheses, self.rooms, strict=True)):
            kept = ids[-room:] if self.truncate == "left" else ids[:room]
            joined = self.frame.join(kept, hypothesis)
            pairs.append(
                EncodedText(
                    ids=joined[0],
                    types=joined[1],
                    outputs=self.options.outputs,
                    truncated=number == 0 and tokens > min(self.rooms),  # counted once for the text
                    empty=tokens == 0,
                    spans=NO_SPANS,
                )
            )
        return pairs


def own_ids(encoding: Encoding) -> Ints:
    """Without special tokens."""
    ids: Ints = np.array(encoding.ids, np.int32)[np.array(encoding.special_tokens_mask) == 0]
    return ids
