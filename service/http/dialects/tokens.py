"""The routes that show a text's tokens, as text-embeddings-inference has them: pieces, vectors, weights of words."""

from service.http.dialects.spec import TaskSpec
from service.tasks import schemas, tokens
from service.tasks.vectors import sparse, token_vectors

ROUTES = {
    "/tokenize": TaskSpec(
        "tokenize",
        tokens.tokenize,
        tokens.TokenizeRequest,
        tokens.TokenizeResponse,
        "The tokens of a text or pair of any length, or their number, in the format of text-embeddings-inference",
    ),
    "/decode": TaskSpec(
        "decode",
        tokens.decode,
        tokens.DecodeRequest,
        tokens.DecodeResponse,
        "The texts of token ids, in the format of text-embeddings-inference",
    ),
    "/embed_all": TaskSpec(
        "embed_all",
        token_vectors.embed_all,
        token_vectors.EmbedAllRequest,
        schemas.EmbedAllResponse,
        "A vector per token of each text, the last layer's hidden states, in the format of text-embeddings-inference",
        npy=True,
    ),
    "/embed_sparse": TaskSpec(
        "embed_sparse",
        sparse.embed_sparse,
        sparse.EmbedSparseRequest,
        sparse.EmbedSparseResponse,
        "Weights of words for checkpoints trained for sparse vectors (SPLADE), as text-embeddings-inference has them",
    ),
}
