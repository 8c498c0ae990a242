"""Vectors of texts, and the similarity of texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..artifact import Manifest
from ..errors import Invalid, NoSuchHead, ServiceError
from ..tokenization.chunks import Chunks, TextChunk
from ..tokenization.encoding import EncodeOptions, PromptedTexts, TokenIds
from ..tokenization.windows import WindowsReader
from ..turns import in_turns
from .flow import Task, TaskResult, Tasks
from .inputs import (
    EmbeddingFields,
    EmbedRequest,
    SimilarityRequest,
    TextsOrIds,
    TruncationFields,
    VectorFields,
    WindowFields,
    merge_parameters,
)

VECTORS_AT_ONCE = 256  # scaled at once: 1 ms for 768 numbers
OPTIONS = {name: EncodeOptions(outputs=frozenset({name})) for name in ("cls", "pooler", "mean", "sentence")}
Floats = NDArray[Any]
# Of vectors [..., dimensions], as sentence-transformers computes it: of a distance the negative. A row at a time: a
# matrix product would round a row differently by the number of rows.
SIMILARITIES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "cosine": lambda first, second: np.clip((first * second).sum(axis=-1), -1.0, 1.0),
    "dot": lambda first, second: (first * second).sum(axis=-1),
    "euclidean": lambda first, second: -np.linalg.norm(first - second, axis=-1),
    "manhattan": lambda first, second: -np.abs(first - second).sum(axis=-1),
}
Combine = Callable[[Floats, NDArray[np.int64]], Floats]  # [windows, ...] and [windows] tokens added -> [...]


async def embed(tasks: Tasks, request: EmbedRequest) -> Task:
    """[inputs, dimensions] float32."""
    return await embed_texts(tasks, read_inputs(tasks, request.inputs, request.tokenizer, request), request)


async def embed_texts(
    tasks: Tasks, texts: Sequence[str] | TokenIds, request: EmbeddingFields, *, beside: int = 0
) -> Task:
    """[texts, dimensions] float32; `beside` as in `Tasks.chunks`."""
    pooling = _choose_pooling(tasks, request)
    options = OPTIONS[pooling]
    texts = prepend_prompt(tasks, texts, request)
    leaves_out = pooling == "sentence" and not tasks.manifest.embedding.include_prompt
    if leaves_out and isinstance(texts, PromptedTexts):
        options = tasks.reading(request, options)
        (alone,) = await tasks.tokenizer.encode([texts.prompt], options, "right")
        options = replace(options, pooled_from=len(alone) - 1)  # with [CLS] and without the prompt's last [SEP]
    chunks = await read_texts(tasks, texts, request, options, beside=beside)
    return Task(chunks, partial(_answer, tasks, request, pooling))


async def _answer(tasks: Tasks, request: EmbeddingFields, pooling: str, result: TaskResult) -> Floats:
    defaults, vectors = tasks.embedding, await join_windows(result, [row[pooling][0] for row in result.rows])
    kept = defaults.kept_dimensions if pooling == defaults.pooling and request.dimensions is None else None
    if kept is not None and request.normalize is not None:  # cut, then scaled, if the request says so
        request = request.model_copy(update={"dimensions": kept})
    made = await stack_vectors(vectors, request, normalize=defaults.normalize)
    made = made if kept is None else np.ascontiguousarray(made[:, :kept])
    result.compared = [made]
    return made


def read_inputs(tasks: Tasks, inputs: TextsOrIds, tokenizer: str | None, request: VectorFields) -> list[str] | TokenIds:
    """The texts or the token ids of a request.

    Raises Invalid if the client does not say that the ids are of this model's tokenizer, and for a prompt of ids.
    """
    if isinstance(inputs, str):
        return [inputs]
    if not inputs or isinstance(inputs[0], str):
        return cast(list[str], inputs)
    if tokenizer != (name := tasks.manifest.name):
        given = "no tokenizer is named" if tokenizer is None else f"the tokenizer is {tokenizer!r}"
        raise Invalid(
            f"input holds token ids, and {given}: ids of another tokenizer would give vectors of other words. Send "
            "texts (LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or, with ids of this model's own "
            f'tokenizer, "tokenizer": "{name}"',
            code="token_ids",
        )
    if find_prompt(tasks.manifest, request):
        message = (
            'this request has a prompt, which token ids cannot take: send texts, or prompt: "" for ids as they are'
        )
        raise Invalid(message, code="prompt")
    return TokenIds(cast(list[list[int]], [inputs] if isinstance(inputs[0], int) else inputs))


def prepend_prompt(tasks: Tasks, texts: Sequence[str] | TokenIds, request: VectorFields) -> Sequence[Any]:
    """The texts with the request's prompt before each. Raises as `find_prompt`."""
    prompt = find_prompt(tasks.manifest, request)
    return PromptedTexts(prompt, cast(Sequence[str], texts)) if prompt else texts


def find_prompt(manifest: Manifest, request: VectorFields) -> str:
    """The text before every text of the request, as in sentence-transformers' encode; empty for none.

    Raises Invalid for a name that the checkpoint does not have, or for both a name and a text.
    """
    if request.prompt is not None:
        if request.prompt_name is not None:
            raise Invalid("prompt and prompt_name are both set: send one of them", code="prompt")
        return request.prompt
    name = manifest.embedding.default_prompt if request.prompt_name is None else request.prompt_name
    if not name and request.prompt_name is None:
        return ""
    return stated_prompt(manifest, name, way_out=". /embed also takes a text, `prompt`")


def stated_prompt(manifest: Manifest, name: str, *, way_out: str = "") -> str:
    """The checkpoint's prompt of that name. Raises Invalid, with the `way_out`, if it has no such prompt."""
    prompts = manifest.embedding.prompts
    if name not in prompts:
        known = f"it has {', '.join(prompts)}" if prompts else "it has none"
        raise Invalid(f"this model has no prompt {name!r}; {known}{way_out}", code="prompt")
    return prompts[name]


def unit_length(vectors: NDArray[np.generic]) -> NDArray[np.float32]:
    """Each row of [..., d] divided by its Euclidean length."""
    rows = vectors.astype(np.float64)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12), np.float32)


def _choose_pooling(tasks: Tasks, request: EmbeddingFields) -> str:
    """Raises NoSuchHead, and Invalid for vectors of tokens and for more dimensions than the vector has."""
    pooling = request.pooling or tasks.embedding.pooling
    if pooling in ("none", "multi"):
        routes = "/embed and /embed_all have" if pooling == "none" else "/embed has"
        message = f"pooling {pooling} gives a vector for each token: {routes} it, this route does not"
        raise Invalid(message, code="pooling")
    if pooling == "sentence" and pooling not in tasks.manifest.heads:
        own = tasks.manifest.embedding.pooling
        raise NoSuchHead(f"this model has no pooling sentence: the vectors of its checkpoint are pooling {own}")
    tasks.require_head(pooling)
    check_dimensions(request, int(tasks.manifest.outputs[pooling].shape[-1]))
    return pooling


def check_dimensions(request: VectorFields, width: int) -> None:
    """Raises Invalid for more dimensions than the `width` of the vectors."""
    if request.dimensions is not None and request.dimensions > width:
        message = f"dimensions is {request.dimensions}; this model has {width}: send 1 to {width}"
        raise Invalid(message, code="dimensions")


async def stack_vectors(vectors: Sequence[Floats], request: EmbeddingFields, *, normalize: bool) -> Floats:
    """[vectors, ...], each as of `cut_and_scale`."""
    if len(vectors) <= VECTORS_AT_ONCE:  # np.array: np.stack takes ten times as long for a single vector
        return cut_and_scale(np.array(vectors), request, normalize=normalize)
    starts = in_turns(range(0, len(vectors), VECTORS_AT_ONCE))
    parts = [await stack_vectors(vectors[i : i + VECTORS_AT_ONCE], request, normalize=normalize) async for i in starts]
    return np.concatenate(parts)


def cut_and_scale(vectors: Floats, request: EmbeddingFields, *, normalize: bool) -> Floats:
    """The leading `dimensions` of vectors [..., width], then their unit length; `normalize`: if it is not asked for."""
    own = vectors[..., : request.dimensions]
    scales = normalize if request.normalize is None else request.normalize
    return unit_length(own) if scales else np.ascontiguousarray(own)


def asks_for_windows(request: TruncationFields) -> bool:
    """Whether texts are read as windows. Raises Invalid if they are also to be cut."""
    if not isinstance(request, WindowFields) or (request.long is None and request.stride is None):
        return False
    if request.truncate not in (None, False, "NONE"):
        message = "truncate: true cuts a text that is too long, and long: windows (or a stride) reads all of it"
        raise Invalid(f"{message}: send one of them", code="parameters")
    return True


async def read_texts(
    tasks: Tasks, texts: Sequence[Any], request: TruncationFields, options: EncodeOptions, *, beside: int = 0
) -> Callable[[], TextChunk | Chunks]:
    """Reads the texts whole, as `Tasks.chunks`, or as windows if the request asks for these.

    Each window begins with the prompt of PromptedTexts, as every text does, and counts as an input.
    """
    if not asks_for_windows(request):
        return partial(tasks.chunks, texts, request, options, beside=beside)
    size, options = 0, tasks.reading(request, options)
    if isinstance(texts, PromptedTexts):
        (alone,) = await tasks.tokenizer.encode([texts.prompt], replace(options, spans=True), "right")
        size = int((alone.spans[:, 0] >= 0).sum())  # without the special tokens around it
    tasks.check_count(texts)
    stride, most = cast(WindowFields, request).stride, tasks.settings.max_inputs
    how: Any = {"kind": WindowsReader, "asked_stride": stride, "prompt": size, "most": most}
    return partial(tasks.tokenizer.chunks, texts, options, **how)


def mean(answers: Floats, added: NDArray[np.int64]) -> Floats:
    """[...] of [windows, ...], in float64 weighted by the tokens that each window adds; then as it was."""
    return np.asarray(np.average(answers.astype(np.float64), axis=0, weights=added), answers.dtype)


async def join_windows(result: TaskResult, answers: list[Floats], combine: Combine = mean) -> list[Floats]:
    """The answer of each text, from those of its windows; the answers of texts that are read whole stay as they are."""
    if result.sequences[0].added is None:
        return answers
    added, own = np.array([one.added for one in result.sequences], np.int64), windows_of_texts(result)
    return [
        answers[one.start] if one.stop - one.start == 1 else combine(np.stack(answers[one]), added[one])
        async for one in in_turns(own)
    ]


def windows_of_texts(result: TaskResult) -> list[slice]:
    """The places of each text's windows among the rows; their numbers are in the result from now on."""
    result.windows = np.bincount(result.owners).tolist()
    ends = np.cumsum(result.windows).tolist()
    return list(map(slice, [0, *ends[:-1]], ends))


async def similarity(tasks: Tasks, request: SimilarityRequest) -> Task:
    """The similarity of each sentence to the source sentence, in the format of text-embeddings-inference."""
    request = merge_parameters(request)
    source, sentences = request.inputs.source_sentence, request.inputs.sentences
    task = await similarities(tasks, [source], sentences, request)
    return task._replace(locate=partial(locate_behind, "source_sentence", 1))


async def similarities(tasks: Tasks, first: Sequence[str], second: Sequence[str], fields: TruncationFields) -> Task:
    """[second] float32: of each text and the text of `first` at its place, or its only text, by the vectors of `embed`.

    The index of an error is that of a text among all texts.
    """
    count, similarity = len(first), tasks.manifest.embedding.similarity or "cosine"
    # of unit length for a cosine; for another function as `encode` gives them
    normalize = True if similarity == "cosine" else None
    request = EmbeddingFields.model_construct(**dict(fields), normalize=normalize)
    task = await embed_texts(tasks, [*first, *second], request, beside=count)

    def show(value: Floats, _: TaskResult) -> Floats:
        vectors = value.astype(np.float64)
        return np.asarray(SIMILARITIES[similarity](vectors[:count], vectors[count:]), np.float32)

    return task.then(show)


def locate_behind(name: str, count: int, error: ServiceError) -> None:
    """For a request whose first `count` texts are those of the field `name`, and its inputs the others."""
    if error.index is not None:
        error.index -= count
        if error.index < 0:
            error.message, error.index = f"{name}: {error.message}", None
