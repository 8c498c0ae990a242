"""The service's own routes, one row per task."""

from service.http.dialects.spec import TaskSpec
from service.tasks import fill_mask, nsp, predict, schemas, tag, vectors

ROUTES = {
    "/embed": TaskSpec(
        "embed",
        vectors.embed_any,
        schemas.EmbedRequest,
        vectors.VectorsResponse,
        "One vector per text, always as a list of lists, by default as the checkpoint says, else the state of [CLS]; "
        "or with pooling none one per token",
        npy=True,
    ),
    "/fill-mask": TaskSpec(
        "fill_mask",
        fill_mask.fill_mask,
        schemas.FillMaskRequest,
        schemas.FillMaskResponse,
        "Candidates for masked words, in the format of transformers' FillMaskPipeline",
        head="fill_mask",
    ),
    "/nsp": TaskSpec(
        "nsp",
        nsp.nsp,
        schemas.NspRequest,
        schemas.NspResponse,
        "Whether the second text follows the first",
        head="pair",
    ),
    "/predict": TaskSpec(
        "predict",
        predict.predict,
        schemas.PredictRequest,
        schemas.PredictResponse,
        "A classifier's labels for a text or a pair, in the format of text-embeddings-inference",
        head="labels",
    ),
    "/tag": TaskSpec(
        "tag",
        tag.tag,
        schemas.TagRequest,
        schemas.TagResponse,
        "A classifier's tags for the tokens of a text, in the format of transformers' TokenClassificationPipeline",
        head="tags",
    ),
}
