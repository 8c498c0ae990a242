"""Request and response bodies of /predict and /tag. Checked as strictly as those in `schemas`."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.tasks.schemas import (
    PARAMETERS,
    Body,
    ClientFields,
    FailFastList,
    Pair,
    StringOrList,
    TruncationFields,
    WindowFields,
)

Strategy = Literal["none", "simple", "first", "average", "max"]
ScoreFunction = Literal["softmax", "sigmoid", "none"]


class ZeroShotFields(Body):
    candidate_labels: StringOrList | None = Field(
        None,
        description="score these labels by entailment, as transformers' zero-shot-classification pipeline: a list, or "
        "a text with commas; for a classifier that has an entailment label",
    )
    hypothesis_template: str | None = Field(
        None, description='with candidate_labels: {} is where the label goes (default "This example is {}.")'
    )
    multi_label: bool | None = Field(
        None, description="with candidate_labels: true scores each label alone, false (default) all against each other"
    )


class PredictParameters(TruncationFields, WindowFields, ZeroShotFields):
    top_k: int | None = Field(None, ge=1, description="number of labels, best first (default: all)")
    function_to_apply: ScoreFunction | None = Field(
        None, description="makes scores of logits; null: the checkpoint's own, label_scores in /info"
    )
    window_scores: Literal["mean", "max"] | None = Field(
        None,
        description="with long: a label's score is the mean over the windows (default), each weighted by the tokens "
        "that it adds, or their largest",
    )


class PredictRequest(ClientFields, PredictParameters):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "I like tea."},
                {"inputs": "I like tea.", "candidate_labels": ["drinks", "travel"]},
            ]
        }
    )

    inputs: str | Pair | FailFastList[str | Pair | FailFastList[str]] = Field(
        examples=["I like tea."],
        description='a text; ["a", "b"] is one pair, with candidate_labels two texts; [["a"], ["a", "b"]] is a batch '
        "of texts and pairs",
    )
    raw_scores: bool = Field(False, description="return logits instead of probabilities")
    parameters: PredictParameters | None = Field(
        None, description=f"{PARAMETERS}. With it, even if empty, one input is answered with a list of one list"
    )


class TagParameters(WindowFields):
    aggregation_strategy: Strategy | None = Field(
        None,
        description="none (default): single tokens; simple: groups; first, average, max: groups of whole words, each "
        "with the tag of its first token, of its tokens' mean scores, or of its most certain token; windows need one "
        "other than none",
    )
    ignore_labels: FailFastList[str] | None = Field(None, description='labels to leave out (default ["O"])')


class TagRequest(ClientFields, TruncationFields, TagParameters):
    inputs: StringOrList = Field(examples=["My name is Clara and I live in Berkeley."])
    parameters: TagParameters | None = Field(None, description=PARAMETERS)


class Label(BaseModel):
    label: str = Field(examples=["positive"])
    score: float = Field(examples=[0.93])


class ZeroShotLabels(BaseModel):
    """The labels of one text, best first, as transformers' pipeline gives them."""

    sequence: str = Field(description="the text", examples=["I like tea."])
    labels: list[str] = Field(examples=[["drinks", "travel"]])
    scores: list[float] = Field(examples=[[0.93, 0.07]])


class Tag(BaseModel):
    entity: str = Field("", description="with aggregation_strategy none", examples=["B-PER"])
    entity_group: str = Field("", description="with any other aggregation_strategy", examples=["PER"])
    score: float = Field(examples=[0.99])
    index: int = Field(0, description="index of the token, with aggregation_strategy none", examples=[4])
    word: str = Field(examples=["clara"])
    start: int = Field(description="first character in the text", examples=[11])
    end: int = Field(description="one past the last character", examples=[16])


ZeroShotResponse = Annotated[ZeroShotLabels | list[ZeroShotLabels], Field(description="with candidate_labels")]
PredictResponse = list[Label] | list[list[Label]] | ZeroShotResponse
TagResponse = list[Tag] | list[list[Tag]]
