"""The texts of one request on their way to tokens, in steps of a bounded number of characters."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as HFTokenizer

from service.errors import TokenizerFailed
from service.tokenization.encoding import (
    Direction,
    EncodedText,
    EncodeOptions,
    Texts,
    check_room,
    encode_texts,
    to_encoded_text,
    too_long,
)
from service.tokenization.pieces import PIECE_CHARACTERS, Cuts, LongText
from service.tokenization.tokenizer_check import guard

TEXT_COST = 100  # characters that a text counts for beside its own: its arrays take as long
SAMPLES, SAMPLE_CHARACTERS = 16, 60  # texts of a request, and the characters of each, that an estimate is made from
MIN_TOKENS_PER_CHARACTER = 0.05  # of an estimate
Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class EncodingJob:
    """`step` until it is `done`; each step gives the next texts, or none while a long one is read. Knows no threads."""

    tokenizer: HFTokenizer
    cuts: Cuts
    texts: Texts
    sizes: Sequence[int]  # characters of each text
    options: EncodeOptions
    truncate: Direction | None  # the side that is cut off; None: a text that is too long is an error
    limit: int  # tokens of a text, special ones counted
    mask_id: int
    position: int = 0  # the next text
    sequences_per_text: int = 1
    _long: LongText | None = None  # the next text, partly read
    _tokens: int = 0  # of the sample and of the texts that were not cut
    _characters: int = 0  # of those
    _sizes: "np.ndarray[tuple[int], np.dtype[np.int64]]" = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = np.array(self.sizes, np.int64)

    @property
    def done(self) -> bool:
        return self.position == len(self.texts)

    @property
    def owners(self) -> Sequence[int]:
        """The text of each sequence so far, and perhaps of further ones."""
        return range(len(self.texts))

    @property
    def expected_sequences(self) -> int:
        """Of the texts that are left; estimated where a text may be several."""
        return (len(self.texts) - self.position) * self.sequences_per_text

    @property
    def left(self) -> int:
        """Characters that may still have to be read."""
        if self._long is not None:
            return int(self._sizes[self.position + 1 :].sum()) + self._long.left
        return int(self._sizes[self.position :].sum())

    def sample(self) -> None:
        """Reads the beginnings of some texts, spread over the request, for `expected_tokens`."""
        every = -(-len(self.texts) // SAMPLES)
        self._read_samples(
            [(text if isinstance(text, str) else text[0])[:SAMPLE_CHARACTERS] for text in self.texts[::every]]
        )

    def _read_samples(self, samples: Sequence[str]) -> None:
        try:
            encodings = guard(lambda: self.tokenizer.encode_batch(list(samples), add_special_tokens=False))
        except TokenizerFailed:
            return  # the text that it fails on is found in its turn
        self._tokens += sum(map(len, encodings))
        self._characters += sum(map(len, samples))

    @property
    def expected_tokens(self) -> int:
        """Estimated tokens of the texts that are left, from those that were read; at least 1 until it is done."""
        return 0 if self.done else max(1, self._estimate_tokens(self._expected_sizes()))

    def _expected_sizes(self) -> Floats:
        """[texts that are left], their tokens, uncut and with special tokens."""
        rate = max(MIN_TOKENS_PER_CHARACTER, self._tokens / max(1, self._characters))
        pair = not isinstance(self.texts[0], str)
        sizes = self._sizes[self.position :] * rate + self.tokenizer.num_special_tokens_to_add(pair)
        return sizes.astype(np.float64, copy=False)

    def _estimate_tokens(self, sizes: Floats) -> int:
        """The tokens that the model gets of texts of so many tokens."""
        return int(np.minimum(sizes, self.limit).sum())

    def step(self) -> list[EncodedText]:
        """Raises Invalid and TokenizerFailed with the index of the text."""
        if self.sizes[self.position] > PIECE_CHARACTERS and self.cuts.pattern is not None:
            return self._read_long()
        first = self.position
        end, cost = first, 0
        while end < len(self.texts) and (end == first or cost + self.sizes[end] <= PIECE_CHARACTERS):
            cost += self.sizes[end] + TEXT_COST * self.sequences_per_text
            end += 1
        encoded = self._encode(first, end)
        self.position = end
        return encoded

    def _encode(self, first: int, end: int) -> list[EncodedText]:
        """The texts from `first` to `end`, which are read at once."""
        encoded = encode_texts(
            self.tokenizer,
            self.texts[first:end],
            self.options,
            self.truncate,
            limit=self.limit,
            mask_id=self.mask_id,
            first=first,
        )
        for text, size in zip(encoded, self.sizes[first:end], strict=True):
            if not text.truncated:
                self._tokens += len(text.ids)
                self._characters += size
        return encoded

    def _read_long(self) -> list[EncodedText]:
        index = self.position
        return guard(lambda: self._read_piece(index), index)

    def _read_piece(self, index: int) -> list[EncodedText]:
        long = self._long = self._long or self._start_long(index)
        long.read()
        self._check_long(index, long)
        if not long.done:
            return []
        encoded = self._finish_long(index, long)
        self.position, self._long = index + 1, None
        return encoded

    def _start_long(self, index: int) -> LongText:
        text = self.texts[index]
        room = self.limit - self.tokenizer.num_special_tokens_to_add(not isinstance(text, str))
        if room < 1 + (not isinstance(text, str)):
            check_room(self.tokenizer, text, self.limit, index)
        count_all = self.truncate == "left" and self.options.pooled_from > 0
        return LongText(self.tokenizer, self.cuts, text, room, self.truncate, count_all)

    def _check_long(self, index: int, long: LongText) -> None:
        """Raises Invalid for a text that is too long, as soon as that is known."""
        cut = long.tokens - long.room
        if cut > 0 and self.truncate is None:
            more, found = "more than " if long.left else "", self.limit + cut - (1 if long.left else 0)
            raise too_long(f"{more}{found}", self.limit, index)

    def _finish_long(self, index: int, long: LongText) -> list[EncodedText]:  # noqa: ARG002
        encoding, offsets = long.encoding()
        cut, left = max(0, long.tokens - long.room), self.truncate == "left"
        encoded = to_encoded_text(encoding, self.options, self.mask_id, limit=self.limit, left=left, already_cut=cut)
        if self.options.spans:
            encoded.spans[encoded.spans[:, 0] >= 0] = offsets
        return [replace(encoded, empty=long.empty)]
