"""Request and response bodies of /fill-mask."""

from pydantic import BaseModel, Field

from service.tasks.schemas import PARAMETERS, Body, ClientFields, StringOrList, TruncationFields


class FillMaskParameters(Body):
    top_k: int | None = Field(None, ge=0)
    targets: StringOrList | None = None
    first_piece: bool | None = None
    joint: bool | None = None
    beam: int | None = Field(None, ge=1)


class FillMaskRequest(ClientFields, TruncationFields):
    inputs: StringOrList = Field(examples=["Paris is the capital of [MASK]."])
    parameters: FillMaskParameters | None = Field(None, description=PARAMETERS)
    top_k: int | None = Field(None, ge=0, description="candidates per mask, or with joint per input (default 5)")
    targets: StringOrList | None = Field(
        None,
        description="score only these words; probabilities are over the vocabulary. A word of several pieces takes the "
        "place of the mask with a mask for each piece, and its pieces are scored from left to right",
    )
    first_piece: bool | None = Field(
        None, description="true: score the first piece of a target that has several, as transformers does"
    )
    joint: bool | None = Field(
        None,
        description="true: fill all masks of an input together, the mask with the most certain candidate first; each "
        "candidate fills all of them",
    )
    beam: int | None = Field(
        None,
        ge=1,
        description="with joint: how many partly filled texts are kept while masks are filled (default 10, or top_k "
        "where that is more)",
    )


class Candidate(BaseModel):
    score: float = Field(
        description="probability over the whole vocabulary at the mask; of several pieces their geometric mean",
        examples=[0.41],
    )
    token: int = Field(description="of several pieces the first", examples=[2605])
    token_str: str = Field(examples=["france"])
    sequence: str = Field(description="the text with this token", examples=["paris is the capital of france."])
    target: str = Field("", description="with targets: the one that this token stands for", examples=["France"])
    tokens: list[int] = Field([], description="where a target has several pieces: the ids of all", examples=[[2605]])
    pieces: list[str] = Field([], description="likewise: as the vocabulary spells them", examples=[["france"]])
    log_probability: float = Field(
        0.0, description="likewise: the sum of the pieces' log-probabilities, each given those before it", le=0
    )
    log_probability_per_piece: float = Field(
        0.0, description="likewise: divided by the number of pieces; `score` is its exponential", le=0
    )


class JointCandidate(BaseModel):
    """One way to fill all masks of an input; lists have an item for each mask, in the order of the text."""

    score: float = Field(description="the exponential of log_probability", examples=[0.031])
    log_probability: float = Field(description="the sum of log_probabilities", examples=[-3.47])
    tokens: list[int] = Field(examples=[[2605, 981]])
    pieces: list[str] = Field(description="as the vocabulary spells them", examples=[["fran", "##ce"]])
    log_probabilities: list[float] = Field(
        description="of each piece, given the text with the pieces that were filled before it", examples=[[-1.2, -2.27]]
    )
    order: list[int] = Field(description="the masks in the order in which they were filled", examples=[[1, 0]])
    texts: list[str] = Field(description="the text of each run of neighbouring masks", examples=[["france"]])
    sequence: str = Field(description="the text with all pieces", examples=["paris is the capital of france."])


MaskCandidates = list[Candidate] | list[list[Candidate]]  # of one input: with one mask, with several
FillMaskResponse = MaskCandidates | list[MaskCandidates] | list[JointCandidate] | list[list[JointCandidate]]
