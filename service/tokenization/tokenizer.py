"""Turns texts into token ids, and ids back into text. Long work runs on the tokenizer's own thread, off the event loop.

Special tokens in a user's text are plain text, but for the checkpoint's own, for the mask of fill-mask, and for a
request that asks for all of them.
"""

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.rows import Ints
from packbert.model_export.artifact.special_tokens import own_special_tokens
from packbert.service.artifact import Artifact
from packbert.service.errors import Invalid
from packbert.service.tokenization.check import guard
from packbert.service.tokenization.encoding import (
    INLINE_CHARACTERS,
    Direction,
    EncodedText,
    EncodeOptions,
    PromptedTexts,
    Texts,
    count_each,
    encode_texts,
    is_short,
)
from packbert.service.tokenization.jobs import EncodingJob, Turns, chunk_end, find_word_ends
from packbert.service.tokenization.known_words import KnownWords
from packbert.service.tokenization.pairs import HypothesesJob, PairFrame, QuestionsJob, WindowOptions
from packbert.service.tokenization.special_tokens import reading_only
from packbert.service.tokenization.windows import WindowsJob

T = TypeVar("T")
J = TypeVar("J", bound=EncodingJob)
INLINE_TOKENS = 500  # as INLINE_CHARACTERS, for decoding


@dataclass(slots=True, eq=False)
class Tokenizer:
    artifact: Artifact
    max_characters: int
    report: Callable[[int, int], None] = lambda requests, characters: None  # as Turns.report
    turns: Turns = field(init=False)
    mask_id: int = field(init=False)  # -1 if the model has no mask token
    mask_token: str = field(init=False)
    _whole: HFTokenizer = field(init=False, repr=False)  # reads all special tokens in a text
    _plain: HFTokenizer = field(init=False, repr=False)  # reads the checkpoint's own, the others as text
    _masking: HFTokenizer = field(init=False, repr=False)  # as _plain, and reads the mask token as a mask
    _word_ends: re.Pattern[str] | None = field(init=False, repr=False)  # of all three
    _known_words: KnownWords | None = field(init=False, repr=False)
    _anchor: list[int] = field(init=False, repr=False)  # a token before others; empty if the decoder is not WordPiece's
    _takes_pairs: bool = field(init=False, repr=False)  # not where the model has one segment and a pair has two
    _thread: ThreadPoolExecutor = field(init=False, repr=False)

    def open(self) -> None:
        standard = self.artifact.manifest.special_tokens
        self.mask_id = standard.get("mask", -1)
        self._whole = HFTokenizer.from_file(str(self.artifact.tokenizer))
        self.mask_token = self._whole.id_to_token(self.mask_id) or "" if "mask" in standard else ""
        own = own_special_tokens(self._whole, standard)
        self._plain = reading_only(self._whole, own)
        self._masking = reading_only(self._whole, {*own, self.mask_id})
        self._word_ends = find_word_ends(self._plain)
        self._known_words = KnownWords.of(self._plain, self.artifact.manifest.max_tokens)
        if self._known_words:
            self._known_words.read_masks(self._masking, self.mask_id)
        anchor = self._plain.encode("a", add_special_tokens=False).ids[:1]
        local = type(self._whole.decoder).__name__ == "WordPiece" and self._whole.decode(anchor)
        self._anchor = anchor if local else []
        self._takes_pairs = self.artifact.manifest.sizes["segments"] != 1 or not any(
            self._plain.encode("a", "b").type_ids
        )
        self._thread = ThreadPoolExecutor(1, "tokenizer")
        self._thread.submit(guard, lambda: self._plain.encode_batch([""])).result()  # starts its threads
        self.turns = Turns(self._thread, self.report)

    def close(self) -> None:
        if hasattr(self, "_thread"):  # it was opened
            self._thread.shutdown(wait=True)

    def measure(self, texts: Texts) -> list[int]:
        """The characters of each text. Raises Invalid with the index of one that has too many, and as `check_pairs`."""
        if not self._takes_pairs and not all(isinstance(text, str) for text in texts):
            self.check_pairs()
        sizes, most = count_each(texts), self.max_characters
        for index, size in enumerate(sizes):
            if size > most:
                prompted = " with its prompt" if isinstance(texts, PromptedTexts) else ""
                limit = f"at most {most} are allowed (BERT_MAX_CHARACTERS)"
                message = f"input has {size} characters{prompted}; {limit}: shorten it"
                raise Invalid(message, code="too_long", index=index)
        return sizes

    def check_pairs(self) -> None:
        """Raises Invalid where the model does not take pairs."""
        if not self._takes_pairs:
            raise Invalid(
                "this model has one segment, and its tokenizer gives a pair two: it takes single texts", code="pair"
            )

    def encode_sync(self, texts: Texts, options: EncodeOptions, truncate: Direction | None) -> list[EncodedText]:
        """Cuts texts that are too long on the side `truncate`; raises Invalid with the text's index if that is None."""
        if self._known_words and (encoded := self._known_words.encode(texts, options)) is not None:
            return encoded
        tokenizer = self._reader(masks=options.masks, special_tokens=options.special_tokens)
        limit = (options.side or self.artifact.manifest).max_tokens
        return encode_texts(tokenizer, texts, options, truncate, limit=limit, mask_id=self.mask_id)

    def start_job(
        self, texts: Texts, sizes: Sequence[int], options: EncodeOptions, truncate: Direction | None
    ) -> EncodingJob:
        """A job for texts of `sizes` characters, with an estimate of their tokens."""
        limit = (options.side or self.artifact.manifest).max_tokens
        return self._job(EncodingJob, texts, sizes, options, limit, truncate=truncate, word_ends=self._word_ends)

    async def run_job(self, job: EncodingJob, *, queued: bool) -> AsyncGenerator[list[EncodedText]]:
        """The next texts of the job, as they become ready, in turns with other requests.

        `queued`: the queue has admitted the request. Raises as `encode_sync`, and Overloaded.
        """
        with self.turns.enter(job.left, queued=queued) as turn:
            while not job.done:
                yield await turn.run(job.step, job.left)

    async def encode(self, texts: Texts, options: EncodeOptions, truncate: Direction | None) -> list[EncodedText]:
        """As `encode_sync`, with long work on the tokenizer's thread. Raises Invalid also for too many characters."""
        sizes = self.measure(texts)
        if is_short(sizes):
            return self.encode_sync(texts, options, truncate)
        job = self.start_job(texts, sizes, options, truncate)
        return [one async for part in self.run_job(job, queued=False) for one in part]

    def start_windows(
        self, texts: Texts, options: EncodeOptions, *, stride: int | None, prompt: int, most: int
    ) -> WindowsJob:
        """A job for windows that overlap by `stride` tokens, one for a text within the model's limit.

        Every window begins with the first `prompt` tokens of its text. Raises Invalid for too many characters or too
        large a stride, TooLarge for far more than `most` windows in all.
        """
        sizes, limit = self.measure(texts), self.artifact.manifest.max_tokens
        return self._job(WindowsJob, texts, sizes, options, limit, asked_stride=stride, prompt=prompt, most=most)

    def start_hypotheses(
        self, texts: Texts, hypotheses: Sequence[Ints], options: EncodeOptions, truncate: Direction | None
    ) -> HypothesesJob:
        """A job for pairs of every text with every hypothesis, whose ids have no special tokens; only texts are cut.

        Raises Invalid for too many characters, and for a hypothesis that leaves no room for a text.
        """
        self.check_pairs()
        sizes, limit, frame = self.measure(texts), self.artifact.manifest.max_tokens, PairFrame.of(self._plain)
        more = {"truncate": truncate, "word_ends": self._word_ends, "hypotheses": hypotheses, "frame": frame}
        return self._job(HypothesesJob, texts, sizes, options, limit, **more)

    def start_questions(
        self, pairs: Sequence[tuple[str, str]], options: EncodeOptions, asked: WindowOptions, most: int
    ) -> QuestionsJob:
        """A job for pairs (question, context), each of one or more windows.

        Raises Invalid for too many characters, TooLarge for more than `most` windows in all.
        """
        return self._job(QuestionsJob, pairs, self.measure(pairs), options, asked.limit, asked=asked, most=most)

    def _job(
        self, kind: type[J], texts: Texts, sizes: Sequence[int], options: EncodeOptions, limit: int, **more: Any
    ) -> J:
        """A job of this kind, with an estimate of its tokens where it is not read at once."""
        tokenizer = self._reader(masks=options.masks, special_tokens=options.special_tokens)
        job = kind(tokenizer, texts, sizes, options, limit, self.mask_id, **more)
        if not is_short(sizes):
            job.sample()
        return job

    def _reader(self, *, masks: bool, special_tokens: bool) -> HFTokenizer:
        if special_tokens:
            return self._whole
        return self._masking if masks else self._plain

    async def word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word's pieces: one for a word of the vocabulary, none for a word without pieces."""
        sizes, most = [len(word) for word in words], self.max_characters
        if sum(sizes) > most:
            limit = f"at most {most} are allowed (BERT_MAX_CHARACTERS)"
            raise Invalid(f"targets hold {sum(sizes)} characters; {limit}: send fewer", code="targets")
        return await self._run_in_chunks(sizes, lambda chunk: self._word_ids(words[chunk]))

    def piece(self, token_id: int) -> str:
        """The word piece as the vocabulary spells it."""
        return self._plain.id_to_token(token_id) or ""

    @property
    def marks_subwords(self) -> bool:
        """Whether a piece that continues a word is spelled with a prefix (## in WordPiece)."""
        return bool(getattr(self._plain.model, "continuing_subword_prefix", None))

    def join_pieces(self, pieces: Sequence[str]) -> str:
        return str(self._plain.decoder.decode(list(pieces)))

    async def decode(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """The text of each sequence of ids."""

        def decode_chunk(chunk: slice) -> list[str]:
            return [self._whole.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences[chunk]]

        return await self._run_in_chunks([len(ids) for ids in sequences], decode_chunk, inline=INLINE_TOKENS)

    async def decode_filled(
        self, before: list[int], fillings: Sequence[Sequence[int]], after: list[int], *, skip_special_tokens: bool
    ) -> list[str]:
        """The text of `before`, each filling and `after`; what surrounds short fillings is decoded once where the
        decoder is WordPiece's, for which the text of a token depends only on whether it is the first."""
        decode, anchor = partial(self._whole.decode, skip_special_tokens=skip_special_tokens), self._anchor

        def join() -> list[str]:
            first, cut = decode(before), len(decode(anchor))
            last = decode(anchor + after)[cut:] if first else ""
            return [f"{first}{decode([*anchor, *ids])[cut:]}{last}" for ids in fillings] if first else []

        if anchor and len(before) + len(after) + sum(map(len, fillings)) <= INLINE_TOKENS and (joined := guard(join)):
            return joined
        return await self.decode([[*before, *ids, *after] for ids in fillings], skip_special_tokens=skip_special_tokens)

    async def read(
        self,
        texts: Texts,
        work: Callable[[HFTokenizer, Texts], list[T]],
        *,
        masks: bool = False,
        special_tokens: bool = False,
        queued: bool = False,
    ) -> list[T]:
        """What `work` makes of the texts, with the tokenizer that reads mask tokens, or all special tokens, or neither.

        `queued`: the queue has admitted them. Raises as `measure`, and Overloaded.
        """
        encoder, sizes = self._reader(masks=masks, special_tokens=special_tokens), self.measure(texts)
        return await self._run_in_chunks(sizes, lambda chunk: work(encoder, texts[chunk]), queued=queued)

    async def _run_in_chunks(
        self,
        sizes: Sequence[int],
        work: Callable[[slice], list[T]],
        *,
        inline: int = INLINE_CHARACTERS,
        queued: bool = False,
    ) -> list[T]:
        """The results of `work` for items of these sizes: inline if they are short, else in turns on the thread."""
        if is_short(sizes, inline):
            return guard(lambda: work(slice(0, len(sizes))))
        results, first = list[T](), 0
        with self.turns.enter(sum(sizes), queued=queued) as turn:
            while first < len(sizes):
                end = chunk_end(sizes, first)
                step = partial(guard, partial(work, slice(first, end)))
                results += await turn.run(step, sum(sizes[first:]))
                first = end
        return results

    def _word_ids(self, words: Sequence[str]) -> list[list[int]]:
        known = {word: self._plain.token_to_id(word) if word else None for word in words}
        unknown = [word for word, token_id in known.items() if token_id is None]
        encodings = self._plain.encode_batch(unknown, add_special_tokens=False)
        pieces = {word: encoding.ids for word, encoding in zip(unknown, encodings, strict=True)}
        return [pieces[word] if (token_id := known[word]) is None else [token_id] for word in words]
