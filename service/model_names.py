"""The models of BERT_MODELS: their names, and their shares of the requests of each other."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from packbert.model_export.artifact.manifest import read_file

MAX_SHOWN = 80  # characters of a wrong value
FORMS = "NAME: MODEL or NAME: {model: MODEL, of: NAME, weight: 0 to 1, shadow: 0 to 1}"  # of BERT_MODELS' file
MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.:@-]*(/[\w.:@-]+)*", re.ASCII)  # as a part of a path
MAX_FILE_BYTES = 2**20


class NamedModel(BaseModel):
    """A model of BERT_MODELS, and its shares of another model's requests."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str = Field(min_length=1)
    of: str = ""  # the name of that other model
    weight: float = Field(0.0, ge=0, le=1)  # that this model answers
    shadow: float = Field(0.0, ge=0, le=1)  # that this model repeats after the answer, for a comparison


def read_models(stated: str) -> dict[str, NamedModel]:
    """The model of each name in BERT_MODELS: words NAME=MODEL, or the path of a file. Raises ValueError."""
    models = dict[str, NamedModel]()
    if "=" in stated:
        where, words = stated[:MAX_SHOWN], [word.partition("=") for word in stated.split()]
        pairs: list[tuple[str, Any]] = [(name, model) for name, _, model in words]
    else:
        where, pairs = stated, _read_file(stated)
    if fault := fault_of_names([name for name, _ in pairs]):
        raise ValueError(f"{where}: {fault}; write {FORMS}")
    for name, model in pairs:
        if name in models:
            raise ValueError(f"{where}: {name} is named twice")
        try:
            models[name] = NamedModel.model_validate(model if isinstance(model, dict) else {"model": model})
        except ValidationError as error:
            messages = {"extra_forbidden": f"unknown key, known are {', '.join(NamedModel.model_fields)}"}
            faults = [f"{one['loc'][0]}: {messages.get(one['type'], one['msg'])}" for one in error.errors()]
            raise ValueError(f"{where}: {name}: {'; '.join(faults)}; write {FORMS}") from None
    for name in models:
        if fault := _fault_of_shares(name, models):
            raise ValueError(f"{where}: {name}: {fault}")
    return models


def fault_of_names(names: Sequence[str]) -> str:
    """Why models that are served together cannot have these names; empty if they can."""
    for name in names:
        if not MODEL_NAME.fullmatch(name):
            return f"{name[:MAX_SHOWN]!r} is no name that fits into a path"
        if hidden := [one for one in names if name.startswith(f"{one}/")]:
            return f"{name} begins with {hidden[0]}/, so paths of {hidden[0]} would lead to it: choose another name"
    return ""


def _read_file(stated: str) -> list[tuple[str, Any]]:
    """The names of a file of BERT_MODELS, each with a MODEL or the fields of a NamedModel. Raises ValueError."""
    import yaml  # takes 15 ms, which a start without such a file does not need

    try:
        text = read_file(Path(stated), MAX_FILE_BYTES).decode()
        root = yaml.compose(text, yaml.BaseLoader)  # whose scalars are all texts: `no` is a name, too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        fault = " ".join(str(error).split())
        raise ValueError(f"{stated} is neither NAME=MODEL nor a YAML file: {fault}") from None
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise ValueError(f"{stated} names no model; write {FORMS}")
    pairs = []
    for name, model in root.value:
        value = model.value
        if isinstance(model, yaml.MappingNode):
            value = {str(key.value): one.value for key, one in model.value}
            if len(value) < len(model.value):
                raise ValueError(f"{stated}: {name.value} has a key twice; write {FORMS}")
        pairs.append((str(name.value), value))
    return pairs


def _fault_of_shares(name: str, models: Mapping[str, NamedModel]) -> str:
    """Why a model cannot have what it states of another model's requests; empty if it can."""
    stated = models[name]
    if not stated.of:
        fault = "weight and shadow are shares of the requests of another model: name it in of"
        return fault if stated.weight + stated.shadow else ""
    if stated.of not in models or models[stated.of].of:
        others = ", ".join(one for one, its in models.items() if not its.of)
        return f"of is {stated.of!r}, which is not one of the models without of: {others}"
    total = math.fsum(one.weight + one.shadow for one in models.values() if one.of == stated.of)
    return f"the shares of the requests for {stated.of} are {total:g} together: at most 1" if total > 1 else ""
