"""Settings from BERT_* environment variables, read once at start. An unknown or invalid variable stops the start."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "BERT_"
LINK = re.compile(r"SERVICE_(HOST|PORT)|PORT_\d+_[A-Z]+")  # names that Kubernetes derives from a Service


class SettingsError(Exception):
    """A setting is unknown or invalid; the message names the variable."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, allow_inf_nan=False)

    artifact: Path = Field(description="folder that `python -m model_export` wrote")
    host: str = Field("127.0.0.1", description="address to listen on; `0.0.0.0` means all IPv4 addresses")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 lets the system choose")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="`auto` takes the GPU if it is usable and the artifact has a part for it; "
        "`cuda` without a usable GPU fails at start",
    )
    api_processes: int = Field(
        0,
        ge=0,
        le=256,
        description="processes for HTTP and tokenizing in front of one engine process; "
        "0 uses one process for all, enough for a CPU",
    )
    threads: int = Field(0, ge=0, le=1024, description="threads of one run; 0 means the usable cores, quota included")
    token_budget: int = Field(0, ge=0, le=2**20, description="tokens in one batch; 0 measures the best size at start")
    max_waiting_tokens: int = Field(200_000, ge=1, description="tokens in the queue; beyond it requests get a 429")
    max_wait_seconds: float = Field(10.0, gt=0, description="estimated wait above which a request gets a 429")
    max_inputs: int = Field(2048, ge=1, description="inputs in one request")
    max_characters: int = Field(100_000, ge=1, description="characters in one text, before tokenizing")
    max_body_bytes: int = Field(8 * 2**20, ge=1, description="bytes in one request body")
    max_header_bytes: int = Field(16 * 2**10, ge=256, description="bytes of a request's first line and headers")
    client_timeout_seconds: float = Field(
        20.0,
        gt=0,
        description="time to receive a request (408), and time after which a client that reads nothing is disconnected",
    )
    max_top_k: int = Field(1000, ge=1, description="candidates for one mask")
    truncate: bool = Field(False, description="whether texts that are too long are cut if the request does not say")
    timeout_ms: int = Field(60_000, ge=1, description="deadline of a request without `x-request-timeout-ms`")
    drain_seconds: float = Field(20.0, ge=0, description="time after SIGTERM for waiting requests to finish")
    run_timeout_seconds: float = Field(
        30.0, gt=0, description="a longer run is given up: all requests get a 503 and the process ends with exit code 1"
    )
    self_check_seconds: float = Field(
        5.0,
        gt=0,
        description="interval of the self-check (known input, known output); under load it runs every 100 batches",
    )
    api_key: str = Field("", description="if set, task routes require `Authorization: Bearer KEY`")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is logged")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Reads and checks all settings; SettingsError names every fault."""
        variables = os.environ if environment is None else environment
        mine = {name: value for name, value in variables.items() if name.startswith(PREFIX)}
        known = {PREFIX + name.upper(): name for name in cls.model_fields}
        if unknown := sorted(set(mine) - set(known)):
            links = "; Kubernetes sets these for a Service named bert or bert-...: set enableServiceLinks: false"
            hint = links if any(LINK.search(name) for name in unknown) else ""
            raise SettingsError(f"unknown setting {', '.join(unknown)}{hint}; known are {', '.join(sorted(known))}")
        if empty := sorted(name for name, value in mine.items() if not value.strip() and known[name] != "api_key"):
            raise SettingsError("; ".join(f"{name}: it is empty; leave it out to get its default" for name in empty))
        try:
            settings = cls.model_validate({known[name]: value for name, value in mine.items()})
        except ValidationError as error:
            faults = [f"{PREFIX}{'.'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors()]
            raise SettingsError("; ".join(faults)) from None
        settings._check_together()
        return settings

    def _check_together(self) -> None:
        if self.api_key != self.api_key.strip() or not self.api_key.isprintable():
            raise SettingsError(
                "BERT_API_KEY: it starts or ends with white space, or holds a control character "
                "(a file's last newline?); no client can send such a key"
            )
        if self.token_budget > self.max_waiting_tokens:
            raise SettingsError(
                "BERT_MAX_WAITING_TOKENS is below BERT_TOKEN_BUDGET: no batch could be full"
            )


def variables_with(**more: str) -> dict[str, str]:
    """The variables of this process and `more`, for a child process."""
    return {**os.environ, **more}
