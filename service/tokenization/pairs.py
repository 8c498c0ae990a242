"""Pairs of texts with hypotheses, as zero-shot classification asks them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.rows import Ints

from ..errors import Invalid
from .chunks import TextReader
from .encoding import NO_SPANS, EncodedText, too_long


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
class HypothesesReader(TextReader):
    """Makes pairs of each text with every hypothesis; only texts are cut.

    Raises Invalid for a hypothesis that leaves no room for a text, and for a text that is too long.
    """

    hypotheses: Sequence[Ints]  # the ids of each, without special tokens
    frame: PairFrame
    rooms: list[int] = field(init=False)  # tokens of a text beside each hypothesis

    def __post_init__(self) -> None:
        self.sequences_per_text = len(self.hypotheses)
        self.rooms = [self.limit - self.frame.size - len(ids) for ids in self.hypotheses]
        if (least := min(self.rooms)) < 1:
            longest = self.limit - self.frame.size - least
            message = f"a label in the hypothesis template has {longest} tokens; this model takes at most {self.limit}"
            reason = f"which leaves no room for a text beside {self.frame.size} special tokens"
            raise Invalid(f"{message}, {reason}: shorten the template or the labels", code="candidate_labels")

    def _sequences(self, index: int, encoding: Encoding) -> list[EncodedText]:
        ids = np.array(encoding.ids, np.int32)[np.array(encoding.special_tokens_mask) == 0]
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
