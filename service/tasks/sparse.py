"""/embed_sparse: weights of words, in the format of text-embeddings-inference.

SPLADE (Formal et al. 2021): log(1 + relu(logit)) of the masked-LM head, the maximum over the tokens of a text.
BGE-M3: a weight of each token, the maximum over a text's tokens of a word.
"""

from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from packbert.model_export.artifact.batch import Row
from packbert.model_export.artifact.manifest import TOKEN_WEIGHTS
from packbert.model_export.artifact.rows import word_weights

from ..artifact import Manifest
from ..errors import NoSuchHead, TooLarge
from ..tokenization.encoding import EncodedText, EncodeOptions
from .embed import prepend_prompt, read_inputs
from .flow import Task, TaskResult, Tasks
from .inputs import TextsWithPrompt, VectorFields
from .results import MadeList

OPTIONS = EncodeOptions(outputs=frozenset({"sparse_places", "sparse_logits"}))
OPTIONS_OF_TOKENS = EncodeOptions(outputs=frozenset({TOKEN_WEIGHTS}))
MAX_WEIGHTS = 1_000_000  # in a response: about 35 MB


class EmbedSparseRequest(TextsWithPrompt):
    """text-embeddings-inference's request, and `force`."""

    force: bool = Field(
        False, description="also for a checkpoint that was not trained for it, from its masked-language-model head"
    )


class Weight(BaseModel):
    index: int = Field(description="id in the vocabulary", examples=[3899])
    value: float = Field(examples=[1.37])


EmbedSparseResponse = Annotated[
    list[list[Weight]], Field(description="the words of each input whose weight is above zero, by index")
]


async def embed_sparse(tasks: Tasks, request: EmbedSparseRequest) -> Task:
    """Weights of words for checkpoints trained for sparse vectors (SPLADE), as text-embeddings-inference has them.
    Always a list of lists."""
    _require(tasks, request.force)
    fields = VectorFields(prompt_name=request.prompt_name)
    texts = prepend_prompt(tasks, read_inputs(tasks, request.inputs, request.tokenizer, fields), fields)
    of_tokens = tasks.manifest.sparse == TOKEN_WEIGHTS

    async def answer(result: TaskResult) -> MadeList:
        if of_tokens:
            return MadeList(partial(_weights_of_tokens, tasks.manifest), result.sequences, result.rows)
        check_answer_size(sum(len(row["sparse_logits"]) for row in result.rows))
        return MadeList(partial(_weights, tasks.manifest.sparse), result.rows)

    return Task(partial(tasks.chunks, texts, request, OPTIONS_OF_TOKENS if of_tokens else OPTIONS), answer)


def check_answer_size(weights: int) -> None:
    if weights > MAX_WEIGHTS:
        limit = f"at most {MAX_WEIGHTS} are allowed: split the request"
        raise TooLarge(f"the texts have {weights} weights above zero; {limit}")


def _require(tasks: Tasks, force: bool) -> None:
    """Raises NoSuchHead if the checkpoint was not trained for sparse vectors, or cannot make them."""
    manifest = tasks.manifest
    if "sparse" in manifest.heads:
        return
    tasks.require_head("fill_mask")
    if not force:
        why = manifest.missing["sparse"]
        raise NoSuchHead(f'{why} (SPLADE); send "force": true to make them of its masked-language-model head')


def _weights(activation: str, row: Row) -> list[dict[str, Any]]:
    """The weights of a text, as in the response."""
    weights = word_weights(row["sparse_logits"], activation).tolist()
    pairs = zip(row["sparse_places"][:, 1].tolist(), weights, strict=True)
    return [{"index": index, "value": value} for index, value in pairs]


def _weights_of_tokens(manifest: Manifest, tokens: EncodedText, row: Row) -> list[dict[str, Any]]:
    """The largest weight of each word of a text; special tokens but the mask have none."""
    special = [number for name, number in manifest.special_tokens.items() if name != "mask"]
    found = zip(tokens.ids.tolist(), row[TOKEN_WEIGHTS][:, 0].tolist(), strict=True)
    largest = dict(sorted((index, value) for index, value in found if value > 0 and index not in special))
    return [{"index": index, "value": value} for index, value in largest.items()]
