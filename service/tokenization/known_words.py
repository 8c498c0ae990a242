"""The ids of texts in printable ASCII from those of their words, each of which the tokenizers library reads once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from tokenizers import Tokenizer as HFTokenizer

from ..errors import TokenizerFailed
from .encoding import NO_SPANS, EncodedText, EncodeOptions, Texts, guard

WORDS = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")  # BertPreTokenizer's, of printable ASCII: each mark is a word
KNOWN_WORDS = 20_000  # about 5 MB; then all are forgotten
LONGEST_KNOWN = 32  # characters; a longer word is read again each time
PRINTABLE = re.compile(r"[!-~]+")
PROBE = "The quick, brown fox's 12 (un)believable jumps_over [MASK] the ~lazy~ e-mail: Antidisestablishmentarianism!"


@dataclass(slots=True, eq=False)
class KnownWords:
    """`encode` for a tokenizer that reads special tokens as text, but for the mask if a request asks for masks.

    Texts with added tokens that are not special are left to the library.
    """

    tokenizer: HFTokenizer
    lowercase: bool
    limit: int  # tokens of the model
    before: list[int]  # the special tokens of every text
    after: list[int]
    added: re.Pattern[str] | None  # tokens that are read in a text whatever the words around them
    mask: str = ""  # the mask token, as a text spells it; empty if texts with masks are not read here
    mask_id: int = -1
    _pieces: dict[str, tuple[int, ...]] = field(default_factory=dict)  # ids by word

    @classmethod
    def of(cls, tokenizer: HFTokenizer, limit: int) -> "KnownWords | None":
        """None for a tokenizer that reads words in another way, or whose ids of PROBE are not those of its words."""
        parts = [type(one).__name__ for one in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.model)]
        if parts != ["BertNormalizer", "BertPreTokenizer", "WordPiece"] or tokenizer.truncation or tokenizer.padding:
            return None
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
        if not all(map(PRINTABLE.fullmatch, added)):  # words that are read together must not spell an added token
            return None
        pattern = re.compile("|".join(map(re.escape, added)), re.IGNORECASE) if added else None
        try:
            probe = guard(lambda: tokenizer.encode(PROBE))
        except TokenizerFailed:
            return None
        special = probe.special_tokens_mask
        first, after = special.index(0), special[::-1].index(0)
        ids = probe.ids
        lowercase = tokenizer.normalizer.lowercase
        known = cls(tokenizer, lowercase, limit, ids[:first], ids[len(ids) - after :], pattern)
        return known if known._ids(PROBE)[0] == ids and not any(probe.type_ids) else None

    def read_masks(self, masking: HFTokenizer, mask_id: int) -> None:
        """From now on `encode` reads texts with masks too, if `masking` takes a mask for a word of its own."""
        token = masking.get_added_tokens_decoder().get(mask_id)
        if token is not None and not (token.normalized or token.single_word):
            self.mask, self.mask_id = token.content, mask_id
            ids, masks = self._ids(PROBE, masks=True)
            if ids != masking.encode(PROBE).ids or [ids[mask] for mask in masks] != [mask_id]:
                self.mask = ""

    def encode(self, texts: Texts, options: EncodeOptions) -> list[EncodedText] | None:
        """The sequence of each text; None if a text is more than this reads. Raises TokenizerFailed."""
        if options.special_tokens or options.spans or options.pooled_from or options.side:
            return None
        if options.masks and not self.mask:
            return None
        encoded = []
        for index, text in enumerate(texts):
            if not isinstance(text, str) or not text.isascii() or not text.isprintable():
                return None
            if self.added is not None and self.added.search(text):
                return None
            ids, masks = self._ids(text, index, masks=options.masks)
            size = len(ids)
            if size > self.limit:
                return None
            encoded.append(
                EncodedText(
                    ids=np.array(ids, np.int32),
                    types=np.zeros(size, np.int32),
                    outputs=options.outputs,
                    masks=masks,
                    top_k=options.top_k,
                    targets=options.targets,
                    layers=options.layers,
                    empty=size == len(self.before) + len(self.after),
                    spans=NO_SPANS,
                )
            )
        return encoded

    def _ids(self, text: str, index: int | None = None, *, masks: bool = False) -> tuple[list[int], tuple[int, ...]]:
        """The ids with special tokens, and the positions of `masks`; `index` is that of the text in its request."""
        ids, positions = [*self.before], []
        for number, part in enumerate(text.split(self.mask) if masks else (text,)):
            if number:
                positions.append(len(ids))
                ids.append(self.mask_id)
            words = WORDS.findall(part.lower() if self.lowercase else part)
            try:
                pieces = list(map(self._pieces.__getitem__, words))
            except KeyError:
                pieces = self._read(words, index)
            ids += chain.from_iterable(pieces)
        return ids + self.after, tuple(positions)

    def _read(self, words: Sequence[str], index: int | None) -> list[tuple[int, ...]]:
        """The ids of each word. Those that are new are read as a single text: a text for each would take threads."""
        known = self._pieces
        unknown = [word for word in dict.fromkeys(words) if word not in known]
        encoding = guard(lambda: self.tokenizer.encode(" ".join(unknown), add_special_tokens=False), index)
        new: dict[str, tuple[int, ...]] = dict.fromkeys(unknown, ())
        for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
            if word is not None:  # that of a special token, of which there are none
                new[unknown[word]] += (token,)
        pieces = [known[word] if word in known else new[word] for word in words]
        if len(known) + len(new) > KNOWN_WORDS:
            known.clear()
        known.update((word, ids) for word, ids in new.items() if len(word) <= LONGEST_KNOWN)
        return pieces
