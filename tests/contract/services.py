"""The services that the contract is recorded of: a checkpoint, settings, and requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.contract import heads
from tests.contract.dialects import DIALECTS
from tests.contract.edge import ADMIN, EDGE, KEYS
from tests.contract.native import NATIVE
from tests.contract.request import Request

LIMITS = {  # the same answers, sentences and batches with any number of cores
    "BERT_THREADS": "1",
    "BERT_TOKEN_BUDGET": "512",
    "BERT_MAX_INPUTS": "8",
    "BERT_MAX_CHARACTERS": "4000",
    "BERT_MAX_WAITING_TOKENS": "4096",
}
KEY_FILE_CONTENT = "gamma\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    name: str
    folders: tuple[str, ...]  # of tests/golden, one put over the other; none: the bundled model
    requests: list[Request]
    settings: Mapping[str, str] = field(default_factory=lambda: LIMITS)
    is_process: bool = False  # in the suite too, where the others are applications without a process
    has_admin_port: bool = False
    has_key_file: bool = False


def _of_several_processes() -> list[Request]:
    """The requests of `sample` whose answers workers and keys may not change."""
    return [
        replace(request, answer_of=f"sample: {request.name}").with_headers(authorization="Bearer alpha")
        for request in [*NATIVE, *DIALECTS]
        if request.compared == "whole" and "other" not in request.path and "versions/2" not in request.path
    ]


SERVICES = (
    Service(name="sample", folders=(), requests=[*NATIVE, *DIALECTS, *EDGE], is_process=True),
    Service(
        name="workers",
        folders=(),
        requests=[*_of_several_processes(), *KEYS],
        settings=LIMITS
        | {"BERT_WORKERS": "2", "BERT_API_KEY": "alpha,beta", "BERT_CORS_ORIGINS": "https://page.example"},
        is_process=True,
        has_key_file=True,
    ),
    Service(name="admin port", folders=("bert",), requests=ADMIN, has_admin_port=True),
    Service(name="base", folders=("bert",), requests=heads.BASE, settings=LIMITS | {"BERT_RERANK": "cosine"}),
    Service(name="labels", folders=("bert-labels",), requests=heads.LABELS),
    Service(name="one label", folders=("distilbert-labels",), requests=heads.ONE_LABEL),
    Service(name="tags", folders=("bert-tags",), requests=heads.TAGS),
    Service(name="spans", folders=("bert-spans",), requests=heads.SPANS),
    Service(name="choices", folders=("bert-choices",), requests=heads.CHOICES_OF_A_PROMPT),
    Service(name="sparse", folders=("bert", "splade/log1p_relu"), requests=heads.SPARSE),
    Service(name="zero-shot", folders=("bert-labels", "zero-shot/bert"), requests=heads.ZERO_SHOT),
    Service(name="prompts", folders=("bert", "sentence-transformers/prompts"), requests=heads.PROMPTS),
    Service(
        name="other defaults",
        folders=("bert",),
        requests=heads.OTHER_DEFAULTS,
        settings=LIMITS
        | {
            "BERT_POOLING": "mean",
            "BERT_NORMALIZE": "true",
            "BERT_TRUNCATE": "true",
            "BERT_ROOT_TASK": "nsp",
            "BERT_PAGE": "false",
        },
    ),
)
