"""/embed: chooses what its vectors are of: a text, a token, a word; the last layer or others."""

from collections.abc import Coroutine
from typing import Annotated, Any

from pydantic import Field

from service.errors import Invalid
from service.tasks.base import TaskResult, Tasks
from service.tasks.parameters import merge_parameters
from service.tasks.schemas import EmbedAllResponse, EmbedRequest, EmbedResponse, Vectors
from service.tasks.vectors.embed import embed
from service.tasks.vectors.layers import embed_layers
from service.tasks.vectors.token_vectors import PiecesAndVectors, WordsAndVectors, embed_tokens
from service.tasks.vectors.windows import asks_for_windows

VectorsOfLayers = Annotated[list[list[Vectors]], Field(description="with layers: for each input and layer")]
VectorsResponse = EmbedResponse | EmbedAllResponse | VectorsOfLayers | list[PiecesAndVectors] | list[WordsAndVectors]


def embed_any(tasks: Tasks, request: EmbedRequest, *, timeout_seconds: float) -> Coroutine[Any, Any, TaskResult]:
    """Raises Invalid for fields that have no meaning together."""
    if request.parameters is not None:
        request = merge_parameters(request)
    if (request.pieces or request.words) and request.pooling != "none":
        name = "pieces" if request.pieces else "words"
        raise Invalid(f'{name} are shown beside vectors of tokens: send "pooling": "none" too', code=name)
    if request.pooling == "none" and asks_for_windows(request, request):
        message = "windows make one vector of a text, and pooling none gives one for each token: send another pooling"
        raise Invalid(message, code="pooling")
    if request.layers is not None:
        return embed_layers(tasks, request, timeout_seconds=timeout_seconds)
    if request.layer_pooling is not None:
        raise Invalid("layer_pooling joins layers: send layers too", code="layer_pooling")
    return (embed_tokens if request.pooling == "none" else embed)(tasks, request, timeout_seconds=timeout_seconds)
