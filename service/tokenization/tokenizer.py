"""Turns texts into token ids, and ids back into text. Long work runs on the tokenizer's own thread, off the event loop.
Special tokens in a user's text are plain text; only for fill-mask the mask token is parsed as a mask."""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from model_export.artifact.batch import Tokens
from model_export.artifact.placement import Ints
from service.artifact import Artifact
from service.errors import Invalid, TokenizerFailed
from service.tokenization.tokenizer_check import guard
from service.tokenization.truncation import Direction, Text, check_room, truncate_text
from service.tokenization.windows import WindowSplitter, check_window_count

T = TypeVar("T")
Texts = Sequence[Text]
CHUNK_CHARACTERS = 20_000  # about 5 ms of tokenizing
INLINE_CHARACTERS = 1000  # fewer take under 0.3 ms on the event loop; a thread would add 0.1 ms to send work and result
INLINE_TOKENS = 500  # the same limit for decoding
NO_SPANS = np.empty((0, 2), np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """What a task needs for each of its texts, from the tokenizer and from the model."""

    outputs: frozenset[str]  # as Tokens.outputs; top_k and targets likewise
    top_k: int = 1
    targets: tuple[int, ...] = ()
    masks: bool = False  # parse mask tokens and return their positions
    spans: bool = False
    pooled_from: int = 0  # as Tokens.pooled_from: the tokens of a prompt that pooling leaves out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedText(Tokens):
    """One text or pair for the encoder, with what the tasks need to know of its text."""

    truncated: bool
    empty: bool  # the text, or one side of the pair, has no tokens of its own: also if all characters are zero-width
    spans: Ints  # [length, 2] first and end character of each token, -1 for special tokens; NO_SPANS if not asked for


@dataclass(slots=True, eq=False)
class Tokenizer:
    artifact: Artifact
    max_characters: int
    mask_id: int = field(init=False)  # -1 if the model has no mask token
    mask_token: str = field(init=False)
    _plain: HFTokenizer = field(init=False, repr=False)  # reads all special tokens in a text as text
    _masking: HFTokenizer = field(init=False, repr=False)  # reads the mask token as a mask, the others as text
    _splitter: WindowSplitter = field(init=False, repr=False)
    _thread: ThreadPoolExecutor = field(init=False, repr=False)

    def open(self) -> None:
        self._plain = HFTokenizer.from_file(str(self.artifact.tokenizer))
        self._plain.encode_special_tokens = True
        self.mask_id = self.artifact.manifest.special_tokens.get("mask", -1)
        self.mask_token = self._plain.id_to_token(self.mask_id) or ""
        self._masking = with_only_mask_token(self.artifact.tokenizer, self.mask_id)
        self._splitter = WindowSplitter(tokenizer=self._plain, limit=self.artifact.manifest.max_tokens)
        self._thread = ThreadPoolExecutor(1, "tokenizer")
        self._thread.submit(guard, lambda: self._plain.encode_batch([""])).result()  # starts its threads

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    async def encode(self, texts: Texts, options: EncodeOptions, truncate: Direction | None) -> list[EncodedText]:
        """As `encode_sync`, with long work on the tokenizer's thread. Raises Invalid also for too many characters."""
        return await self._run_in_chunks(
            self._sizes(texts),
            INLINE_CHARACTERS,
            lambda chunk: self.encode_sync(texts[chunk], options, truncate, first=chunk.start),
        )

    async def encode_windows(
        self, texts: Sequence[str], options: EncodeOptions, stride: int, most: int
    ) -> list[list[EncodedText]]:
        """The windows of each text, which overlap by `stride` tokens: one for a text within the model's limit.

        Raises Invalid for too many characters or too large a stride, TooLarge for more than `most` windows in all.
        """
        tokenizer, splitter, total = self._plain, self._splitter, 0
        splitter.check_stride(stride)

        def encode_chunk(chunk: slice) -> list[list[EncodedText]]:
            nonlocal total
            windows = []
            for text, encoding in zip(texts[chunk], _encode_each(tokenizer, texts[chunk], chunk.start), strict=True):
                total += splitter.count(len(encoding), stride)
                check_window_count(total, most)
                whole = _encoded_text(encoding, options, self.mask_id, cut=0, left=False)
                cuts = splitter.split(text, encoding, (whole.ids, whole.types, whole.spans), stride)
                windows.append([replace(whole, ids=ids, types=types, spans=spans) for ids, types, spans in cuts])
            return windows

        return await self._run_in_chunks(self._sizes(texts), 0, encode_chunk)

    def encode_sync(
        self, texts: Texts, options: EncodeOptions, truncate: Direction | None, *, first: int = 0
    ) -> list[EncodedText]:
        """Cuts texts that are too long on the side `truncate`; raises Invalid with the text's index if that is None.

        `first` is the index of the first text in its request.
        """
        tokenizer, limit = self._masking if options.masks else self._plain, self.artifact.manifest.max_tokens
        encoded = []
        for index, encoding in enumerate(_encode_each(tokenizer, texts, first)):
            if (size := len(encoding)) > limit:
                check_room(tokenizer, texts[index], limit, first + index)
                if truncate is None:
                    way_out = "shorten it or send truncate: true"
                    message = f"input has {size} tokens; this model takes at most {limit}: {way_out}"
                    raise Invalid(message, code="too_long", index=first + index)
                encoding = truncate_text(tokenizer, texts[index], limit, truncate)
            cut = max(0, size - limit)
            encoded.append(_encoded_text(encoding, options, self.mask_id, cut=cut, left=truncate == "left"))
        return encoded

    async def word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word's pieces: one for a word of the vocabulary, none for a word without pieces."""
        sizes, most = [len(word) for word in words], self.max_characters
        if sum(sizes) > most:
            message = f"targets hold {sum(sizes)} characters; at most {most} are allowed (BERT_MAX_CHARACTERS)"
            raise Invalid(message, code="targets")
        return await self._run_in_chunks(sizes, INLINE_CHARACTERS, lambda chunk: self._word_ids(words[chunk]))

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
            return [self._plain.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences[chunk]]

        return await self._run_in_chunks([len(ids) for ids in sequences], INLINE_TOKENS, decode_chunk)

    async def read(
        self, texts: Texts, sizes: Sequence[int], masks: bool, work: Callable[[HFTokenizer, Texts], list[T]]
    ) -> list[T]:
        """What `work` makes of texts of so many characters, with the tokenizer that parses the mask token or not."""
        encoder = self._masking if masks else self._plain
        return await self._run_in_chunks(sizes, INLINE_CHARACTERS, lambda chunk: work(encoder, texts[chunk]))

    async def _run_in_chunks(self, sizes: Sequence[int], inline: int, work: Callable[[slice], list[T]]) -> list[T]:
        """The results of `work` for items of these sizes: inline if they are short, else in chunks on the thread."""
        if sum(sizes) <= inline:
            return guard(lambda: work(slice(0, len(sizes))))
        results: list[T] = []
        for chunk in chunk_by_size(sizes):
            results += await asyncio.get_running_loop().run_in_executor(self._thread, guard, partial(work, chunk))
        return results

    def _sizes(self, texts: Texts) -> list[int]:
        """The characters of each text. Raises Invalid with the index of the first that has too many."""
        sizes, most = [_characters(text) for text in texts], self.max_characters
        for index, size in enumerate(sizes):
            if size > most:
                message = f"input has {size} characters; at most {most} are allowed (BERT_MAX_CHARACTERS)"
                raise Invalid(message, code="too_long", index=index)
        return sizes

    def _word_ids(self, words: Sequence[str]) -> list[list[int]]:
        known = {word: self._plain.token_to_id(word) if word else None for word in words}
        unknown = [word for word, token_id in known.items() if token_id is None]
        encodings = self._plain.encode_batch(unknown, add_special_tokens=False)
        pieces = {word: encoding.ids for word, encoding in zip(unknown, encodings, strict=True)}
        return [pieces[word] if (token_id := known[word]) is None else [token_id] for word in words]


def chunk_by_size(sizes: Sequence[int]) -> list[slice]:
    """Consecutive items in chunks of about CHUNK_CHARACTERS; other requests use the thread between two chunks."""
    chunks, start, filled = [], 0, 0
    for i, size in enumerate(sizes):
        if filled and filled + size > CHUNK_CHARACTERS:
            chunks.append(slice(start, i))
            start, filled = i, 0
        filled += size
    return [*chunks, slice(start, len(sizes))]


def with_only_mask_token(file: Path, mask_id: int) -> HFTokenizer:
    """The tokenizer in `file`, with the mask as its only special token; all others are parsed as text."""
    content = json.loads(file.read_text("utf-8"))
    tokens = content["added_tokens"]
    content["added_tokens"] = [token for token in tokens if not token["special"] or token["id"] == mask_id]
    return HFTokenizer.from_str(json.dumps(content))


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def _encode_batch(tokenizer: HFTokenizer, texts: Texts) -> list[Encoding]:
    """A single short text takes `encode`, which keeps the GIL: 15 us faster than `encode_batch`, which releases it."""
    if len(texts) != 1 or _characters(texts[0]) > INLINE_CHARACTERS:
        return tokenizer.encode_batch(list(texts))
    text = texts[0]
    return [tokenizer.encode(text) if isinstance(text, str) else tokenizer.encode(*text)]


def _encode_each(tokenizer: HFTokenizer, texts: Texts, first: int) -> list[Encoding]:
    """As `_encode_batch`. Raises TokenizerFailed with the index of the first text that fails alone."""
    try:
        return guard(lambda: _encode_batch(tokenizer, texts), first)
    except TokenizerFailed:
        if len(texts) == 1:
            raise
        return [one for i, text in enumerate(texts) for one in _encode_each(tokenizer, [text], first + i)]


def _encoded_text(encoding: Encoding, options: EncodeOptions, mask_id: int, *, cut: int, left: bool) -> EncodedText:
    """`cut` is the number of tokens that were cut off, on the left or on the right."""
    special = encoding.special_tokens_mask
    empty = not {0, 1} <= set(encoding.sequence_ids) if encoding.n_sequences > 1 else all(special)
    ids, spans = np.array(encoding.ids, np.int32), NO_SPANS
    if options.spans:
        spans = np.array(encoding.offsets, np.int32)
        spans[np.array(special, bool)] = -1
    return EncodedText(
        ids=ids,
        types=np.array(encoding.type_ids, np.int32),
        outputs=options.outputs,
        masks=tuple(np.flatnonzero(ids == mask_id).tolist()) if options.masks else (),
        top_k=options.top_k,
        targets=options.targets,
        pooled_from=_pooled_from(options.pooled_from, cut if left else 0, len(ids)) if options.pooled_from else 0,
        truncated=cut > 0,
        empty=empty,
        spans=spans,
    )


def _pooled_from(first: int, cut: int, length: int) -> int:
    """The first pooled position after `cut` tokens before it were cut off; [CLS] is left out, the last token is not."""
    return min(max(first - cut, 1), length - 1)
