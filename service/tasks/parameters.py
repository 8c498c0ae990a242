"""The fields that a request may give under `parameters`, as the Hugging Face API has them, or at the top level."""

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

from service.errors import Invalid
from service.tasks.schemas import Body


class WithParameters(Protocol):
    """A request whose fields may also be under `parameters`."""

    @property
    def parameters(self) -> Body | None: ...

    @property
    def model_fields_set(self) -> set[str]: ...

    def model_copy(self, *, update: Mapping[str, Any]) -> Self: ...


Request = TypeVar("Request", bound=WithParameters)


def merge_parameters(request: Request) -> Request:
    """The request with the fields of its `parameters` at the top level. Raises Invalid for a field in both places."""
    nested = _set_fields(request.parameters) if request.parameters is not None else {}
    if twice := sorted(nested.keys() & _set_fields(request).keys()):
        raise Invalid(f"{', '.join(twice)} given twice: at the top level and under parameters", code="parameters")
    return request.model_copy(update={**nested, "parameters": None})


def _set_fields(body: Body | WithParameters) -> dict[str, Any]:
    """The fields of the request that are not null."""
    return {name: value for name in body.model_fields_set if (value := getattr(body, name)) is not None}
