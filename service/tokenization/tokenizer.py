"""Turns texts into token ids, and ids back into text. Long work runs on the tokenizer's own thread, off the event loop.

Special tokens in a user's text are plain text, but for the checkpoint's own, for the mask of fill-mask, and for a
request that asks for all of them.
"""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.special_tokens import own_special_tokens

from ..artifact import Artifact
from ..errors import Invalid
from ..scheduling.request import Chunk
from .chunks import Chunks, TextChunk, TextReader, Turns, each, find_word_ends, in_steps
from .encoding import (
    INLINE_CHARACTERS,
    Direction,
    EncodedText,
    EncodeOptions,
    PromptedTexts,
    Texts,
    guard,
    reading_only,
)
from .known_words import KnownWords

T = TypeVar("T")
R = TypeVar("R", bound=TextReader)
INLINE_TEXTS = 32  # of INLINE_CHARACTERS in all: a text takes 10 to 50 us beside its characters
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
    _takes_pairs: bool = field(init=False, repr=False)  # not if the model has a single segment and a pair has two

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
        self.turns = Turns(ThreadPoolExecutor(1, "tokenizer"), self.report)
        self.turns.thread.submit(guard, lambda: self._plain.encode_batch([""])).result()  # starts its threads

    def close(self) -> None:
        if hasattr(self, "turns"):  # it was opened
            self.turns.thread.shutdown(wait=True)

    def measure(self, texts: Texts) -> list[int]:
        """The characters of each text. Raises Invalid with the index of a text of too many, and as `check_pairs`."""
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
        """Raises Invalid if the model does not take pairs."""
        if not self._takes_pairs:
            raise Invalid(
                "this model has one segment, and its tokenizer gives a pair two: it takes single texts", code="pair"
            )

    def chunks(
        self,
        texts: Texts,
        options: EncodeOptions,
        truncate: Direction | None = None,
        kind: type[TextReader] = TextReader,
        **fields: Any,
    ) -> TextChunk | Chunks:
        """The sequences that a reader of this `kind`, with its own `fields`, makes of texts: of short texts at once.

        Texts that are too long are cut on the side `truncate`. Raises Invalid with the index of a text that may not be
        cut, or has too many characters, and as the reader does.
        """
        sizes = self.measure(texts)
        if kind is TextReader and self._known_words and is_short(sizes):
            encoded = self._known_words.encode(texts, options)
            if encoded is not None:
                return Chunk(encoded, range(len(encoded)))
        reader = self.reader(kind, texts, options, sizes=sizes, truncate=truncate, **fields)
        return reader.read(len(texts)) if is_short(sizes) else reader.chunks(self.turns)

    def reader(
        self, kind: type[R], texts: Texts, options: EncodeOptions, *, sizes: Sequence[int] | None = None, **fields: Any
    ) -> R:
        """Makes the reader of `chunks`; `sizes`: what `measure` returns, if it is known."""
        return kind(
            tokenizer=self._library(options),
            texts=texts,
            sizes=self.measure(texts) if sizes is None else sizes,
            options=options,
            limit=fields.pop("limit", (options.side or self.artifact.manifest).max_tokens),
            mask_id=self.mask_id,
            word_ends=self._word_ends,
            **fields,
        )

    async def encode(self, texts: Texts, options: EncodeOptions, truncate: Direction | None) -> list[EncodedText]:
        """The sequences of all texts. Raises as `chunks`."""
        chunks = each(self.chunks(texts, options, truncate))
        return [one async for chunk in chunks for one in chunk.work]

    def _library(self, options: EncodeOptions) -> HFTokenizer:
        if options.special_tokens:
            return self._whole
        return self._masking if options.masks else self._plain

    async def word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word's pieces: a single id for a word of the vocabulary, none for a word without pieces."""
        sizes, most = [len(word) for word in words], self.max_characters
        if sum(sizes) > most:
            limit = f"at most {most} are allowed (BERT_MAX_CHARACTERS)"
            raise Invalid(f"targets hold {sum(sizes)} characters; {limit}: send fewer", code="targets")

        def read_chunk(chunk: slice) -> list[list[int]]:
            known = {word: self._plain.token_to_id(word) if word else None for word in words[chunk]}
            unknown = [word for word, token_id in known.items() if token_id is None]
            encodings = self._plain.encode_batch(unknown, add_special_tokens=False)
            pieces = {word: encoding.ids for word, encoding in zip(unknown, encodings, strict=True)}
            return [pieces[word] if (token_id := known[word]) is None else [token_id] for word in words[chunk]]

        return await self._run_in_chunks(sizes, read_chunk)

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

        return await self._run_in_chunks(list(map(len, sequences)), decode_chunk, inline=INLINE_TOKENS)

    async def decode_candidates(
        self,
        before: list[int],
        candidates: Sequence[Sequence[int]],
        after: list[int],
        *,
        pad: int | None,
        skip_special_tokens: bool,
    ) -> list[tuple[str, str]]:
        """Of each candidate, the ids of its pieces, its own text, and that of it between `before` and `after`.

        What surrounds short candidates is decoded once if the decoder is WordPiece's, for which the text of a token
        depends only on whether it is the first. `pad` is left out of the text.
        """
        fillings = [ids if pad not in ids else () for ids in candidates]
        decode, anchor = self._whole.decode, self._anchor

        def join() -> list[tuple[str, str]]:
            first, cut = decode(before, skip_special_tokens), len(decode(anchor))
            last = decode(anchor + after, skip_special_tokens)[cut:] if first else ""
            pairs = zip(candidates, fillings, strict=True) if first else ()
            return [
                (decode(ids, False), f"{first}{decode([*anchor, *filled], skip_special_tokens)[cut:]}{last}")
                for ids, filled in pairs
            ]

        if anchor and len(before) + len(after) + sum(map(len, fillings)) <= INLINE_TOKENS and (joined := guard(join)):
            return joined
        words = await self.decode(candidates, skip_special_tokens=False)
        texts = [[*before, *ids, *after] for ids in fillings]
        whole = await self.decode(texts, skip_special_tokens=skip_special_tokens)
        return list(zip(words, whole, strict=True))

    async def read(
        self,
        texts: Texts,
        options: EncodeOptions,
        make: Callable[[Encoding], T],
        *,
        add_special_tokens: bool = True,
        check: Callable[[int], None] = lambda tokens: None,
    ) -> list[T]:
        """What `make` makes of each text, however long; of the options, `masks` and `special_tokens` count.

        `check` gets the number of tokens so far, and may raise. Raises as `measure`, and Overloaded.
        """
        library, tokens = self._library(options), 0

        def read_chunk(chunk: slice) -> list[T]:
            nonlocal tokens
            encodings = library.encode_batch(list(texts[chunk]), add_special_tokens=add_special_tokens)
            tokens += sum(map(len, encodings))
            check(tokens)
            return list(map(make, encodings))

        return await self._run_in_chunks(self.measure(texts), read_chunk)

    async def _run_in_chunks(
        self, sizes: Sequence[int], work: Callable[[slice], list[T]], *, inline: int = INLINE_CHARACTERS
    ) -> list[T]:
        """The results of `work` for items of these sizes: inline if they are short, else in turns on the thread."""
        if is_short(sizes, inline):
            return guard(partial(work, slice(0, len(sizes))))
        parts = [await self.turns.run(partial(guard, partial(work, at)), sum(sizes[at])) for at in in_steps(sizes)]
        return list(chain.from_iterable(parts))


def count_each(texts: Texts) -> list[int]:
    """The characters of each text."""
    prompt, plain = (len(texts.prompt), texts.texts) if isinstance(texts, PromptedTexts) else (0, texts)
    return [prompt + (len(text) if isinstance(text, str) else len(text[0]) + len(text[1])) for text in plain]


def is_short(sizes: Sequence[int], most: int = INLINE_CHARACTERS) -> bool:
    """Whether items of these sizes, characters if not said otherwise, are worked on at once on the event loop."""
    return len(sizes) <= INLINE_TEXTS and sum(sizes) <= most
