"""The tasks: a request's texts -> Tokens -> rows -> what the caller asked for. Nothing of HTTP."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_export.artifact.batch import Row, Tokens
from service.artifact import Manifest
from service.errors import Invalid, NoSuchHead, TooLarge
from service.scheduling.results import InferenceResult
from service.tasks.schemas import EmbedRequest, FillMaskRequest, NspRequest, Pair
from service.tasks.tokenizer import Encoded, Text, Tokenizer, Truncation

FILL_MASK = frozenset({"top_logits", "top_ids", "log_sum_exp"})
TOP_K = 5
MAX_SHOWN = 8_000_000  # tokens in the sequences of an answer: about 60 MB
SMALLEST_SHOWN = 64  # tokens that a candidate counts for, however short its sequence
FILLED_AT_ONCE = 8  # inputs of /fill-mask whose answers are made in one turn of the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """An answer that is ready to be encoded, and what it cost."""

    value: Any
    truncated: int  # inputs that were cut
    tokens: int
    tokenize_seconds: float
    queue_seconds: float
    forward_seconds: float
    format_seconds: float


class InferenceQueue(Protocol):
    """Where sequences wait and run: in this process, or in the engine's."""

    async def submit(self, work: Sequence[Tokens], *, timeout_seconds: float) -> InferenceResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_inputs: int
    max_top_k: int
    truncate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """What came back for a list of texts."""

    encoded: list[Encoded]
    answer: InferenceResult
    tokenize_seconds: float

    def done(self, value: Any, started: float) -> TaskResult:
        return TaskResult(
            value=value,
            truncated=sum(e.truncated for e in self.encoded),
            tokens=sum(len(e.ids) for e in self.encoded),
            tokenize_seconds=self.tokenize_seconds,
            queue_seconds=self.answer.queue_seconds,
            forward_seconds=self.answer.forward_seconds,
            format_seconds=time.perf_counter() - started,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    manifest: Manifest
    tokenizer: Tokenizer
    batcher: InferenceQueue
    limits: Limits

    async def embed(self, request: EmbedRequest, *, timeout_seconds: float) -> TaskResult:
        """[inputs, dimensions] float32."""
        self.require_head("pooler" if request.pooling == "pooler" else "cls")
        width = self.manifest.sizes["hidden"]
        if request.dimensions is not None and request.dimensions > width:
            raise Invalid(f"dimensions is {request.dimensions}; this model has {width}", code="dimensions")
        texts = self.texts(request.inputs)
        output = frozenset({request.pooling})
        encoded, seconds = await self.encode(texts, self.truncation(request.truncate, request.truncation_direction))
        ran = await self.run(
            encoded, [Tokens(ids=e.ids, types=e.types, outputs=output) for e in encoded], seconds, timeout_seconds
        )
        started = time.perf_counter()
        vectors = np.concatenate([row[request.pooling] for row in ran.answer.rows])[:, : request.dimensions]
        return ran.done(unit_length(vectors) if request.normalize else np.ascontiguousarray(vectors), started)

    async def fill_mask(self, request: FillMaskRequest, *, timeout_seconds: float) -> TaskResult:
        """As transformers' FillMaskPipeline: one input (or a list of one) gives one result, a longer list a list of results."""
        self.require_head("fill_mask")
        top_k, targets = await self._candidates(request)
        texts = self.texts(request.inputs)
        encoded, seconds = await self.encode(
            texts, self.truncation(request.truncate, request.truncation_direction), masks=True
        )
        work = [self._masked(e, index, top_k, targets) for index, e in enumerate(encoded)]
        check_shown(work, min(top_k, len(targets) or top_k))
        ran = await self.run(encoded, work, seconds, timeout_seconds)
        started = time.perf_counter()
        results = []
        for tokens, row in zip(work, ran.answer.rows, strict=True):
            results.append(await self._fill(tokens, row, top_k))
            if len(results) % FILLED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return ran.done(results if len(results) > 1 else results[0], started)

    async def next_sentence(self, request: NspRequest, *, timeout_seconds: float) -> TaskResult:
        """The softmax of the pair head's two logits, under the labels it was trained on."""
        self.require_head("pair")
        listed = isinstance(request.inputs, list)
        pairs = [
            _pair(item, index)
            for index, item in enumerate(request.inputs if isinstance(request.inputs, list) else [request.inputs])
        ]
        self.count(pairs)
        encoded, seconds = await self.encode(pairs, self.truncation(request.truncate, request.truncation_direction))
        work = [Tokens(ids=e.ids, types=e.types, outputs=frozenset({"pair"})) for e in encoded]
        ran = await self.run(encoded, work, seconds, timeout_seconds)
        started = time.perf_counter()
        scores = [self._score(row["pair"][0]) for row in ran.answer.rows]
        return ran.done(scores if listed else scores[0], started)

    def require_head(self, head: str) -> None:
        if head not in self.manifest.heads:
            why = self.manifest.missing.get(head, f"family {self.manifest.family} has none")
            raise NoSuchHead(f"this model has no {head} head: {why}; it has {', '.join(self.manifest.heads)}")

    def texts(self, inputs: str | list[str]) -> list[Text]:
        texts: list[Text] = [inputs] if isinstance(inputs, str) else list(inputs)
        self.count(texts)
        return texts

    def count(self, inputs: Sequence[object]) -> None:
        if not inputs:
            raise Invalid("inputs is empty: send at least one", code="empty")
        if len(inputs) > self.limits.max_inputs:
            raise TooLarge(
                f"the request has {len(inputs)} inputs; at most {self.limits.max_inputs} are taken (BERT_MAX_INPUTS): send it in parts"
            )

    def truncation(self, truncate: bool | None, direction: Any) -> Truncation:
        return Truncation(truncate=self.limits.truncate if truncate is None else truncate, direction=direction)

    async def encode(
        self, texts: Sequence[Text], truncation: Truncation, *, masks: bool = False, spans: bool = False
    ) -> tuple[list[Encoded], float]:
        started = time.perf_counter()
        encoded = await self.tokenizer.encode(texts, truncation, masks=masks, spans=spans)
        for index, one in enumerate(encoded):
            if one.empty:
                raise Invalid(
                    "input has no tokens: it is empty, or holds only spaces and control characters",
                    code="empty",
                    index=index,
                )
        return encoded, time.perf_counter() - started

    async def run(self, encoded: list[Encoded], work: Sequence[Tokens], seconds: float, timeout_seconds: float) -> _Ran:
        answer = await self.batcher.submit(work, timeout_seconds=timeout_seconds - seconds)
        return _Ran(encoded=encoded, answer=answer, tokenize_seconds=seconds)

    async def _candidates(self, request: FillMaskRequest) -> tuple[int, tuple[int, ...]]:
        """How many candidates, and the ids of the targets (none: the whole vocabulary)."""
        inner = request.parameters
        if inner and (request.top_k is not None or request.targets is not None):
            raise Invalid(
                "top_k and targets stand both at the top level and under parameters: send them once", code="parameters"
            )
        top_k, targets = (inner.top_k, inner.targets) if inner else (request.top_k, request.targets)
        top_k = TOP_K if top_k is None else top_k
        if top_k > min(self.limits.max_top_k, self.manifest.sizes["vocabulary"]):
            largest = min(self.limits.max_top_k, self.manifest.sizes["vocabulary"])
            raise Invalid(
                f"top_k is {top_k}; at most {largest} candidates are given (BERT_MAX_TOP_K and the vocabulary)",
                code="top_k",
            )
        return top_k, () if targets is None else await self._target_ids(
            [targets] if isinstance(targets, str) else targets
        )

    async def _target_ids(self, targets: Sequence[str]) -> tuple[int, ...]:
        """A word that is no piece of the vocabulary counts as its first piece, as in transformers; each id once, ascending."""
        if len(targets) > self.limits.max_top_k:
            raise Invalid(
                f"{len(targets)} targets; at most {self.limits.max_top_k} are scored (BERT_MAX_TOP_K)", code="targets"
            )
        ids = set(await self.tokenizer.first_ids(targets))
        if not ids:
            raise Invalid("targets holds no word that can be scored: send at least one", code="targets")
        return tuple(sorted(ids))

    def _masked(self, encoded: Encoded, index: int, top_k: int, targets: tuple[int, ...]) -> Tokens:
        masks = tuple(np.flatnonzero(encoded.ids == self.tokenizer.mask_id).tolist())
        if not masks:
            name = self.tokenizer.mask_token
            where = (
                f"was cut away with the end of the text (at most {self.manifest.max_tokens} tokens)"
                if encoded.truncated
                else "was not found in the input"
            )
            raise Invalid(f"the mask token {name} {where}", code="no_mask", index=index)
        outputs = FILL_MASK | {"target_logits"} if targets else FILL_MASK
        return Tokens(
            ids=encoded.ids,
            types=encoded.types,
            outputs=frozenset(outputs),
            masks=masks,
            top_k=max(1, top_k),
            targets=targets,
        )

    async def _fill(self, tokens: Tokens, row: Row, top_k: int) -> list[Any]:
        """Candidates for each mask; the list itself where there is one mask."""
        per_mask = []
        for n, position in enumerate(tokens.masks):
            if tokens.targets:
                ids = np.array(tokens.targets)
                logits = row["target_logits"].reshape(len(tokens.masks), -1)[n]
                order = np.argsort(-logits, kind="stable")[:top_k]
                ids, logits = ids[order], logits[order]
            else:
                ids, logits = row["top_ids"][n][:top_k], row["top_logits"][n][:top_k]
            scores = np.exp(logits.astype(np.float64) - float(row["log_sum_exp"][n, 0]))
            per_mask.append(await self._sequences(tokens, position, ids.tolist(), scores.tolist()))
        return per_mask if len(per_mask) > 1 else per_mask[0]

    async def _sequences(
        self, tokens: Tokens, position: int, ids: list[int], scores: list[float]
    ) -> list[dict[str, Any]]:
        pad = self.manifest.special_tokens.get("pad")
        all_cores = tokens.ids.tolist()
        before, after = ([i for i in side if i != pad] for side in (all_cores[:position], all_cores[position + 1 :]))
        filled = [[*before, number, *after] if number != pad else before + after for number in ids]
        shown = await self.tokenizer.decode(filled, skip_special_tokens=len(tokens.masks) == 1)
        words = await self.tokenizer.decode([[number] for number in ids], skip_special_tokens=False)
        return [
            {"score": score, "token": number, "token_str": word, "sequence": sequence}
            for score, number, word, sequence in zip(scores, ids, words, shown, strict=True)
        ]

    def _score(self, logits: NDArray[np.generic]) -> dict[str, Any]:
        first, second = self.manifest.pair_labels
        difference = float(logits[1]) - float(logits[0])
        share = 1.0 / (1.0 + math.exp(difference)) if difference < 700 else 0.0
        return {"label": first if share >= 0.5 else second, first: share, second: 1.0 - share}


def check_shown(work: Sequence[Tokens], candidates: int) -> None:
    """Raises TooLarge where the sequences of so many candidates for each mask would make an answer that nobody can take."""
    shown = sum(len(tokens.masks) * candidates * max(len(tokens), SMALLEST_SHOWN) for tokens in work)
    if shown > MAX_SHOWN:
        masks = sum(len(tokens.masks) for tokens in work)
        raise TooLarge(
            f"{candidates} candidates for each of {masks} masks, every one with its whole sequence, make an answer of {shown} tokens; "
            f"at most {MAX_SHOWN} are given: ask for fewer candidates (top_k) or send the request in parts"
        )


def unit_length(vectors: NDArray[np.generic]) -> NDArray[np.float32]:
    """Each row of [n, d] divided by its Euclidean length."""
    rows = vectors.astype(np.float64)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), np.float32)


def _pair(item: Pair | list[str], index: int) -> Text:
    if isinstance(item, Pair):
        return item.text, item.text_pair
    if len(item) != 2:
        raise Invalid(f"a pair has two texts, this one has {len(item)}", code="pair", index=index)
    return item[0], item[1]
