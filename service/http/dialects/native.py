"""The service's own routes, one row per task."""

from service.http.dialects.spec import TaskSpec
from service.tasks import attention, schemas
from service.tasks.labels import label_schemas, tag, zero_shot
from service.tasks.masks import fill_mask, mask_schemas
from service.tasks.pairs import answer, choose, nsp
from service.tasks.vectors import vectors

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
        mask_schemas.FillMaskRequest,
        mask_schemas.FillMaskResponse,
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
        zero_shot.predict_labels,
        label_schemas.PredictRequest,
        label_schemas.PredictResponse,
        "A classifier's labels for a text or a pair, in the format of text-embeddings-inference; or with "
        "candidate_labels those of the request, as transformers' zero-shot-classification pipeline gives them",
        head="labels",
    ),
    "/tag": TaskSpec(
        "tag",
        tag.tag,
        label_schemas.TagRequest,
        label_schemas.TagResponse,
        "A classifier's tags for the tokens of a text, in the format of transformers' TokenClassificationPipeline",
        head="tags",
    ),
    "/answer": TaskSpec(
        "answer",
        answer.answer,
        answer.AnswerRequest,
        answer.AnswerResponse,
        "The parts of a context of any length that answer a question, in the format of transformers' "
        "QuestionAnsweringPipeline",
        head="spans",
    ),
    "/choose": TaskSpec(
        "choose",
        choose.choose,
        choose.ChooseRequest,
        choose.ChooseResponse,
        "The choices of a prompt by their probability, from a multiple-choice head",
        head="choices",
    ),
    "/attention": TaskSpec(
        "attention",
        attention.attention,
        attention.AttentionRequest,
        attention.AttentionResponse,
        "How much each token of a text or pair attends to each other, by layer and head",
        npy=True,
        head="attention",
    ),
}
