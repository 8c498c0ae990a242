"""Vectors of texts, and the similarity of texts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from packbert.service.artifact import Manifest
from packbert.service.errors import Invalid, NoSuchHead, ServiceError
from packbert.service.tasks.base import TaskResult, Tasks, as_list
from packbert.service.tasks.inputs import (
    EmbeddingFields,
    EmbedRequest,
    SimilarityRequest,
    StringOrList,
    TextsOrIds,
    TruncationFields,
    VectorFields,
    WindowFields,
    merge_parameters,
)
from packbert.service.tasks.windows import asks_for_windows, run_vectors
from packbert.service.tokenization.encoding import EncodeOptions, PromptedTexts, TokenIds
from packbert.service.turns import in_turns

VECTORS_AT_ONCE = 256  # scaled at once: 1 ms for 768 numbers
OPTIONS = {name: EncodeOptions(outputs=frozenset({name})) for name in ("cls", "pooler", "mean", "sentence")}


async def embed(tasks: Tasks, request: EmbedRequest) -> TaskResult:
    """[inputs, dimensions] float32. The deadline includes the tokenizing of a prompt."""
    request = merge_parameters(request)
    inputs = read_inputs(tasks, request.inputs, request.tokenizer, request)
    return await embed_texts(tasks, inputs, request)


async def embed_texts(tasks: Tasks, texts: list[str] | TokenIds, request: EmbeddingFields) -> TaskResult:
    """As `embed`."""
    pooling = _choose_pooling(tasks, request)
    options = tasks.reading(request, OPTIONS[pooling])
    prompted, prompt = prepend_prompt(tasks, texts, request)
    if prompt and pooling == "sentence" and not tasks.manifest.embedding.include_prompt:
        options, _ = await tasks.prepare(_options_without(tasks, prompt, options))
    if isinstance(request, WindowFields) and asks_for_windows(request, request):
        result = await run_vectors(tasks, prompted, prompt, request, options)
    else:
        result = await tasks.run(prompted, request, options)
    return await _finish(tasks, result, request, pooling)


def read_inputs(tasks: Tasks, inputs: TextsOrIds, tokenizer: str | None, request: VectorFields) -> list[str] | TokenIds:
    """The texts or the token ids of a request.

    Raises Invalid where the client does not say that the ids are of this model's tokenizer, and for a prompt of ids.
    """
    if isinstance(inputs, str) or not inputs or isinstance(inputs[0], str):
        return as_list(cast(StringOrList, inputs))
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


def prepend_prompt(tasks: Tasks, texts: Sequence[str] | TokenIds, request: VectorFields) -> tuple[Sequence[str], str]:
    """The texts with the request's prompt before each, and the prompt, which may be empty. Raises as `find_prompt`."""
    prompt = find_prompt(tasks.manifest, request)
    return cast(Sequence[str], PromptedTexts(prompt, cast(Sequence[str], texts)) if prompt else texts), prompt


def find_prompt(manifest: Manifest, request: VectorFields) -> str:
    """The text before every text of the request, as in sentence-transformers' encode; empty for none.

    Raises Invalid for a name that the checkpoint does not have, or for both a name and a text.
    """
    stated = manifest.embedding
    if request.prompt is not None:
        if request.prompt_name is not None:
            raise Invalid("prompt and prompt_name are both set: send one of them", code="prompt")
        return request.prompt
    name = stated.default_prompt if request.prompt_name is None else request.prompt_name
    if not name and request.prompt_name is None:
        return ""
    if name not in stated.prompts:
        known = f"it has {', '.join(stated.prompts)}" if stated.prompts else "it has none"
        raise Invalid(f"this model has no prompt {name!r}; {known}. /embed also takes a text, `prompt`", code="prompt")
    return stated.prompts[name]


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
    width = int(tasks.manifest.outputs[pooling].shape[-1])
    check_dimensions(request, width)
    return pooling


def check_dimensions(request: VectorFields, width: int) -> None:
    """Raises Invalid for more dimensions than the `width` of the vectors."""
    if request.dimensions is not None and request.dimensions > width:
        message = f"dimensions is {request.dimensions}; this model has {width}: send 1 to {width}"
        raise Invalid(message, code="dimensions")


async def _finish(tasks: Tasks, result: TaskResult, request: EmbeddingFields, pooling: str) -> TaskResult:
    defaults, vectors = tasks.embedding, [row[pooling][0] for row in result.rows]
    kept = defaults.kept_dimensions if pooling == defaults.pooling and request.dimensions is None else None
    if kept is not None and request.normalize is not None:  # cut, then scaled, if the request says so
        request = request.model_copy(update={"dimensions": kept})
    made = await stack_vectors(vectors, request, normalize=defaults.normalize)
    made = made if kept is None else np.ascontiguousarray(made[:, :kept])
    result.compared = [made]
    return result.finish(made)


async def stack_vectors(
    vectors: Sequence[NDArray[np.generic]], request: EmbeddingFields, *, normalize: bool
) -> NDArray[np.generic]:
    """[vectors, ...], each as of `cut_and_scale`."""
    if len(vectors) <= VECTORS_AT_ONCE:  # np.array: np.stack takes ten times as long for one vector
        return cut_and_scale(np.array(vectors), request, normalize=normalize)
    starts = in_turns(range(0, len(vectors), VECTORS_AT_ONCE))
    parts = [await stack_vectors(vectors[i : i + VECTORS_AT_ONCE], request, normalize=normalize) async for i in starts]
    return np.concatenate(parts)


def cut_and_scale(vectors: NDArray[np.generic], request: EmbeddingFields, *, normalize: bool) -> NDArray[np.generic]:
    """The leading `dimensions` of vectors [..., width], then their unit length; `normalize`: if it is not asked for."""
    own = vectors[..., : request.dimensions]
    scales = normalize if request.normalize is None else request.normalize
    return unit_length(own) if scales else np.ascontiguousarray(own)


async def _options_without(tasks: Tasks, prompt: str, options: EncodeOptions) -> EncodeOptions:
    """Leaves out of pooling as many tokens as the prompt alone has: [CLS] is one of them, its last [SEP] is not."""
    (alone,) = await tasks.tokenizer.encode([prompt], options, "right")
    return replace(options, pooled_from=len(alone) - 1)


async def similarity(tasks: Tasks, request: SimilarityRequest) -> TaskResult:
    """[sentences] float32: the similarity of each sentence to the source sentence, by the checkpoint's function."""
    request = merge_parameters(request)
    source, sentences = request.inputs.source_sentence, request.inputs.sentences
    return await similarities(tasks, source, sentences, request, name="source_sentence")


def similarity_fields(manifest: Manifest) -> dict[str, bool]:
    """Of the vectors that `compare` reads: for a cosine of unit length, for others as `encode` gives them."""
    return {"normalize": True} if manifest.embedding.similarity in ("", "cosine") else {}


def compare(manifest: Manifest, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The similarity of vectors [..., dimensions], as sentence-transformers computes it: of a distance the negative.

    A row at a time: a matrix product would round a row differently by the number of rows.
    """
    match manifest.embedding.similarity:
        case "dot":
            return np.asarray((first * second).sum(axis=-1))
        case "euclidean":
            return np.asarray(-np.linalg.norm(first - second, axis=-1))
        case "manhattan":
            return np.asarray(-np.abs(first - second).sum(axis=-1))
        case _:
            return np.asarray(np.clip((first * second).sum(axis=-1), -1.0, 1.0))


async def similarities(
    tasks: Tasks, text: str, others: Sequence[str], fields: TruncationFields, *, name: str
) -> TaskResult:
    """[others] float32, of the vectors that `embed` gives for the same fields.

    Raises what `embed` raises; the index of an error is that of one of `others`, and an error of `text` has none but
    begins with `name`.
    """
    tasks.check_count(others)
    shared = {key: getattr(fields, key) for key in VectorFields.model_fields if hasattr(fields, key)}
    request = EmbedRequest.model_validate(shared | {"inputs": [text, *others]} | similarity_fields(tasks.manifest))
    try:
        result = await embed(tasks.allowing(1 + len(others)), request)
    except ServiceError as error:
        if error.index == 0:
            error.message, error.index = f"{name}: {error.message}", None
        elif error.index is not None:
            error.index -= 1
        raise
    first, *_ = vectors = np.asarray(result.value, np.float64)
    return result.finish(compare(tasks.manifest, vectors[1:], first).astype(np.float32))
