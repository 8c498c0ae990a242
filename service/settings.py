"""The settings: BERT_* environment variables, read and checked once."""

import os
import re
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ByteSize, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo

from packbert.model_export.artifact.manifest import read_file
from packbert.parser import did_you_mean

from .model_names import MAX_SHOWN, MODEL_NAME, NamedModel, read_models

PREFIX = "BERT_"
MAX_TIMEOUT_MS = 3_600_000  # of any request: an hour
KEYS = ("api_key", "admin_key")  # they may be empty
GONE = {  # setting -> what became of it
    "BERT_API_PROCESSES": "BERT_WORKERS (--workers) is the number of whole services behind one port",
    "BERT_ARTIFACT": "BERT_MODEL, or MODEL on the command line, takes an artifact's folder too",
    "BERT_CLIENT_TIMEOUT_SECONDS": "a request has to arrive within 20 s",
    "BERT_COMPRESS_BYTES": "responses of tasks are not compressed: let a proxy in front do it",
    "BERT_CUDA_ATTENTION": "the export chooses the attention of an artifact for CUDA by the size of its heads",
    "BERT_MAX_ATTENTION": "/attention takes 128 tokens",
    "BERT_MAX_BUFFERED_BYTES": "a process holds 8 bodies of BERT_MAX_BODY_BYTES: set that",
    "BERT_MAX_CONNECTIONS": "a process takes 1024 connections: BERT_WORKERS (--workers) or a replica more takes more",
    "BERT_MAX_HEADER_BYTES": "a request's first line and headers have at most 16384 bytes",
    "BERT_MAX_TIMEOUT_MS": "the longest deadline is one hour",
    "BERT_MAX_TOP_K": "a mask gets at most 1000 candidates, a question 1000 answers",
    "BERT_MIN_READ_BYTES_PER_SECOND": "a client has to read 10000 bytes of its response a second",
    "BERT_SHARE_WEIGHTS": "the workers of a service (BERT_WORKERS) share the weights",
    "BERT_RUNTIME": "ONNX Runtime runs fp32 and int8, OpenVINO runs bf16 (BERT_PRECISION)",
    "BERT_SELF_CHECK_SECONDS": "the self-check runs every 5 seconds, and every 100 batches",
    "BERT_UPDATE": "the hub is asked once for each id: name a newer commit in BERT_MODEL (ORG/NAME@REVISION), or "
    "remove the folder sources of BERT_CACHE",
}
TRACING_PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
MAX_KEY_FILE_BYTES = 2**20
LEAST_ADMIN_KEY = 20  # characters
LINK = re.compile(r"SERVICE_(HOST|PORT)|PORT_\d+_[A-Z]+")  # in variable names that Kubernetes derives from a Service

ORIGIN = re.compile(r"https?://[^/\s,?#]+")
RootTask = Literal["answer", "choose", "embed", "fill-mask", "nsp", "predict", "rerank", "similarity", "tag"]


class SettingsError(Exception):
    """A setting is unknown, unreadable or cannot work; the message names the variable."""


class Settings(BaseModel):
    """What the BERT_* variables set, by their names in lower case; frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str | None = Field(
        None,
        description="what to serve: a hub id (ORG/NAME or ORG/NAME@REVISION) or a checkpoint's folder, which the first "
        "start exports, or an artifact; required",
    )
    models: str | None = Field(
        None,
        description="several models, as NAME=MODEL NAME2=MODEL2, or a YAML file of them; the first is the default",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = Field(
        "fp32",
        description="of the export of BERT_MODEL; auto: the first that is fast here, its check within its bound: "
        "on a CPU int8 (AVX2), bf16 (AVX512-BF16 or AMX, and the extra openvino), fp32; on a GPU fp16, fp32",
    )
    cache: Path | None = Field(
        None,
        description="folder of the artifacts that BERT_MODEL was exported to; unset: packbert in $XDG_CACHE_HOME "
        "or ~/.cache",
    )
    served_model_name: str | None = Field(
        None, description="the model's name in answers, /info, /v1/models and KServe's paths; unset: the checkpoint's"
    )
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 for a free one")
    admin_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="a second port, for /metrics, /info and /docs, which then are not on BERT_PORT; /health and /ready "
        "are on both",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto uses the GPU if there is one and the artifact folder supports it"
    )
    workers: int = Field(
        1, ge=1, le=256, description="whole services behind one port, each with its share of the cores"
    )
    memory_limit: ByteSize | None = Field(
        None,
        description="of the models in memory together, such as 4GiB: one is loaded when a request needs it, and the "
        "least recently used are put out; unset: all are loaded at the start and stay",
    )
    threads: int = Field(0, ge=0, le=1024, description="threads of one run; 0: one per available core")
    token_budget: int = Field(0, ge=0, le=2**20, description="tokens in one batch; 0: measured at start")
    max_waiting_tokens: int = Field(
        200_000,
        ge=1,
        description="tokens in the queue, of a large request those of two batches; a request beyond it gets 429",
    )
    max_wait_seconds: float = Field(30.0, gt=0, description="estimated wait; a request that would wait longer gets 429")
    max_inputs: int = Field(2048, ge=1, description="inputs in one request")
    max_characters: int = Field(100_000, ge=1, description="characters in one text, before tokenizing")
    max_body_bytes: int = Field(8 * 2**20, ge=1, description="bytes of a request body")
    pooling: Literal["cls", "mean", "pooler", "sentence"] | None = Field(
        None, description="pooling of a request that names none; unset: as the artifact says"
    )
    normalize: bool | None = Field(
        None, description="unit length, for a request that does not say it; unset: as the artifact says"
    )
    rerank: Literal["cosine"] | None = Field(
        None,
        description="cosine: /rerank of a model without a cross-encoder ranks by the similarity of vectors; unset: by "
        "those of tokens (ColBERT, BGE-M3), or 501",
    )
    root_task: RootTask | None = Field(
        None, description="task of `POST /`; unset: by the heads of the artifact and the fields of the request"
    )
    truncate: bool = Field(False, description="truncate texts that are too long, unless the request says otherwise")
    special_tokens: bool = Field(
        False,
        description="read the special tokens in a text, as `[SEP]`, as special tokens, unless the request says "
        "otherwise; the checkpoint's own, as `[E1]`, are always read",
    )
    timeout_ms: int = Field(
        60_000,
        ge=1,
        le=MAX_TIMEOUT_MS,
        description="deadline of a request without x-request-timeout-ms; of a large one at least four times what it "
        "takes alone",
    )
    linger_seconds: float = Field(
        0.0,
        ge=0,
        description="time after SIGTERM in which /ready is 503 and new requests are still served, before draining",
    )
    drain_seconds: float = Field(
        20.0, ge=0, description="time to finish admitted requests, after SIGTERM and BERT_LINGER_SECONDS"
    )
    run_timeout_seconds: float = Field(
        30.0, gt=0, description="a run that lasts longer ends the process, after all requests got 503"
    )
    api_key: str = Field(
        "", description="if set, task routes require `Authorization: Bearer KEY`; several keys are separated by commas"
    )
    api_key_file: Path | None = Field(
        None, description="file of more keys, one a line; it is read again within a second after it changes"
    )
    admin_key: str = Field(
        "", description="if set, POST /admin/models swaps a model for a request with `Authorization: Bearer KEY`"
    )
    cors_origins: str = Field(
        "", description="origins whose pages may call the service, separated by commas; `*`: all; empty: none"
    )
    page: bool = Field(
        True, description="a page to try the model, at `/` in a browser; not with BERT_ADMIN_PORT, which has /info"
    )
    log_format: Literal["text", "json"] = Field("text", description="of every log line")
    access_log: bool = Field(
        False,
        description="log one line for each response: id, client, method, route, status, bytes, model, texts, tokens, "
        "milliseconds by stage",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe level that is logged"
    )

    _xdg_cache_home: str = PrivateAttr(default="")
    _tracing: bool = PrivateAttr(default=False)
    _notify_socket: str = PrivateAttr(default="")

    @property
    def cache_folder(self) -> Path:
        """The folder of BERT_CACHE or its default. Raises RuntimeError if this user has no home."""
        return self.cache or Path(self._xdg_cache_home or "~/.cache").expanduser() / "packbert"

    @property
    def tracing(self) -> bool:
        """Whether the standard variables of OpenTelemetry ask for traces; its SDK reads the others by itself."""
        return self._tracing

    @property
    def notify_socket(self) -> str:
        """Where a service manager waits to hear that the service is ready; empty without one (NOTIFY_SOCKET)."""
        return self._notify_socket

    @property
    def api_keys(self) -> list[str]:
        """The keys of BERT_API_KEY."""
        return [key.strip() for key in self.api_key.split(",") if key.strip()]

    @property
    def can_swap(self) -> bool:
        """Whether models have names, under which others can take their places."""
        return bool(self.models or self.admin_key)

    @property
    def allowed_origins(self) -> list[str]:
        """The origins of BERT_CORS_ORIGINS."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Raises SettingsError, which names every fault."""
        variables = os.environ if environment is None else environment
        mine = {name: value for name, value in variables.items() if name.startswith(PREFIX)}
        known = {PREFIX + name.upper(): name for name in cls.model_fields}
        if gone := sorted(set(mine) & set(GONE)):
            raise SettingsError("; ".join(f"{name} is no setting any more: {GONE[name]}; unset it" for name in gone))
        if unknown := sorted(set(mine) - set(known)):
            links = "; Kubernetes sets these for a Service whose name begins with bert: set enableServiceLinks: false"
            hint = links if any(LINK.search(name) for name in unknown) else ""
            named = ", ".join(name + did_you_mean(name, known, prefix=PREFIX) for name in unknown)
            raise SettingsError(f"unknown setting {named}{hint}; known are {', '.join(sorted(known))}")
        if empty := sorted(name for name, value in mine.items() if not value.strip() and known[name] not in KEYS):
            raise SettingsError("; ".join(f"{name}: it is empty; leave it out for its default" for name in empty))
        try:
            settings = cls.model_validate({known[name]: value for name, value in mine.items()})
        except ValidationError as error:
            faults = [_fault(str(one["loc"][0]), one["input"]) for one in error.errors()]
            raise SettingsError("; ".join(faults)) from None
        settings._xdg_cache_home = variables.get("XDG_CACHE_HOME", "")
        settings._notify_socket = variables.get("NOTIFY_SOCKET", "")
        settings._tracing = _asks_for_traces(variables)
        settings._check_together()
        return settings

    def _check_together(self) -> None:
        self._check_model()
        self._check_keys()
        if self.served_model_name is not None and not MODEL_NAME.fullmatch(self.served_model_name):
            fault = "no name that fits into a path: write letters, digits and . _ : @ - /, a letter or digit first"
            raise SettingsError(f"BERT_SERVED_MODEL_NAME: {self.served_model_name[:MAX_SHOWN]!r} is {fault}")
        if self.admin_port == self.port:
            raise SettingsError(f"BERT_ADMIN_PORT: {self.port} is BERT_PORT too: choose another, or leave it out")
        for origin in self.allowed_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise SettingsError(f"BERT_CORS_ORIGINS: {origin!r} is no origin: write https://HOST[:PORT]")
        if self.token_budget > self.max_waiting_tokens:
            raise SettingsError("BERT_MAX_WAITING_TOKENS is below BERT_TOKEN_BUDGET: a full batch could never form")

    def _check_keys(self) -> None:
        for name in KEYS:
            key = getattr(self, name)
            if key != key.strip() or not key.isprintable():
                fault = "white space at an end, or a control character (a file's last newline?)"
                raise SettingsError(f"{PREFIX}{name.upper()}: {fault}: no client can send such a key")
        if self.api_key and not self.api_keys:
            raise SettingsError("BERT_API_KEY: it has commas and no key")
        keys = self.api_keys
        if self.api_key_file is not None:
            try:
                keys += read_key_file(self.api_key_file)
            except (OSError, SettingsError) as error:
                raise SettingsError(f"BERT_API_KEY_FILE: {error}") from None
        if self.admin_key in keys:
            raise SettingsError("BERT_ADMIN_KEY: it is an API key too, whose clients could swap models: choose another")
        if 0 < len(self.admin_key) < LEAST_ADMIN_KEY:
            fault = f"it has {len(self.admin_key)} characters, and at least {LEAST_ADMIN_KEY} are needed"
            raise SettingsError(f"BERT_ADMIN_KEY: {fault}: choose a longer one, at random")

    def _check_model(self) -> None:
        if self.model is None and self.models is None:
            raise SettingsError(
                "no model is named: name it on the command line or in BERT_MODEL: a hub id such as "
                "google-bert/bert-base-uncased, a checkpoint's folder or an artifact"
            )
        if self.model is not None and self.models is not None:
            raise SettingsError("BERT_MODEL and BERT_MODELS are both set: leave one out")
        if named_models(self) and self.served_model_name is not None:
            raise SettingsError("BERT_SERVED_MODEL_NAME is for one model: BERT_MODELS names each; leave it out")

    def of_each_model(self, swapped: Mapping[str, tuple[str, str]]) -> "list[Settings]":
        """The settings of a service with each model alone, the default first; `swapped` has the folder of the artifact
        that answers for a name since a swap. Raises SettingsError."""
        if (named := named_models(self)) or swapped:
            sources = {name: one.model for name, one in named.items()}
            sources |= {name: folder for name, (folder, _) in swapped.items()}
            return [self.of_model(name, source) for name, source in sources.items()]
        return [self]

    def of_model(self, name: str, source: str) -> "Settings":
        """The settings of a service with one model alone, a hub id or a folder, which has this name."""
        return self.model_copy(update={"models": None, "model": source, "served_model_name": name})


def named_models(settings: Settings) -> dict[str, NamedModel]:
    """The model of each name in BERT_MODELS; a file is read again. Raises SettingsError."""
    try:
        return read_models(settings.models) if settings.models is not None else {}
    except ValueError as error:
        raise SettingsError(f"BERT_MODELS: {error}") from None


def _asks_for_traces(variables: Mapping[str, str]) -> bool:
    """Raises SettingsError for a protocol that the exporter does not have, and if a package is missing."""
    if not (variables.get("OTEL_EXPORTER_OTLP_ENDPOINT") or variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return False
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true" or variables.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := variables.get(name) or "http/protobuf") != "http/protobuf":
            raise SettingsError(f"{name} is {protocol!r}: traces are sent as http/protobuf, usually to port 4318")
    if missing := [name for name in TRACING_PACKAGES if not [*distributions(name=name)]]:
        raise SettingsError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need {', '.join(missing)}: "
            "install packbert[otel], or unset the variable"
        )
    return True


def read_key_file(path: Path) -> list[str]:
    """The keys of a file, one a line; empty lines do not count. Raises SettingsError if it has no usable key.

    Raises OSError if it cannot be read, is not a regular file or is larger than MAX_KEY_FILE_BYTES.
    """
    try:
        keys = [line.strip() for line in read_file(path, MAX_KEY_FILE_BYTES).decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8: {error}") from None
    if not keys:
        raise SettingsError(f"{path} holds no key; write one a line")
    if faulty := [number for number, key in enumerate(keys, 1) if not key.isprintable()]:
        raise SettingsError(f"{path}: key {faulty[0]} holds a control character: no client can send it")
    return keys


def kind_of(field: FieldInfo) -> Any:
    """The type of a setting that is set."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    return kinds[0] if NoneType in get_args(field.annotation) else field.annotation


def _fault(name: str, value: object) -> str:
    field = Settings.model_fields[name]
    kind, bounds = kind_of(field), {}
    for bound in field.metadata:
        key = type(bound).__name__.lower()  # ge, gt or le
        bounds[key] = getattr(bound, key)
    if get_origin(kind) is Literal:
        wanted = f"one of {', '.join(get_args(kind))}"
    elif kind is bool:
        wanted = "true or false"
    elif kind is ByteSize:
        wanted = "a size, such as 4GiB"
    else:
        wanted = "a whole number" if kind is int else "a number"
        if "le" in bounds:
            wanted += f" from {bounds['ge']} to {bounds['le']}"
        elif bounds:
            wanted += f" of at least {bounds['ge']}" if "ge" in bounds else f" above {bounds['gt']}"
    return f"{PREFIX}{name.upper()}: {str(value)[:MAX_SHOWN]} is not {wanted}"


def set_variables(given: Mapping[str, str]) -> None:
    """Sets variables of this process, which its child processes inherit."""
    os.environ.update(given)


def variables_with(**more: str) -> dict[str, str]:
    """This process's variables and `more`, for a child."""
    return {**os.environ, **more}
