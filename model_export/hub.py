"""Downloads checkpoints by their hub id, ORG/NAME or ORG/NAME@REVISION."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, cast

from .artifact.manifest import (
    CHECKPOINT_WEIGHTS,
    DESCRIPTION,
    HUB_ID,
    MODULES,
    PICKLES,
    has_preferred_weights,
)
from .checkpoint import read_adapter
from .errors import ExportError, HubUnavailable

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TEMPORARY = (408, 429, *range(500, 600))  # statuses
# errors of httpx and of requests, before anything is sent
WRONG_ENDPOINT = ("UnsupportedProtocol", "LocalProtocolError", "InvalidSchema", "InvalidURL", "MissingSchema")


def locate(name: str) -> tuple[Path, str]:
    """The folder of a checkpoint, downloaded if `name` is a hub id, and its name; "" for a local folder.

    Raises ExportError if the hub cannot be reached or does not have it.
    """
    found = HUB_ID.fullmatch(name)
    if found is None or Path(name).exists():
        return Path(name), ""
    with _ends_at_once():
        return _download(found["name"], found["revision"]), found["name"]


def locate_base(folder: Path, named: str) -> Path | None:
    """The folder of the base of the adapter in `folder`: `named`, or the base that it names; None without an adapter.

    Raises the ExportError of `locate`, and another for a `named` base without an adapter.
    """
    adapter = read_adapter(folder)
    if adapter is not None:
        return locate(named or adapter.base)[0] if named or adapter.base else None
    if named:
        raise ExportError(f"--base is for an adapter of peft; {folder} has no adapter_config.json")
    return None


def _download(name: str, revision: str | None) -> Path:
    """The weights come last and from the same commit, so a folder with all weights has all other files too."""
    folder = _snapshot(name, revision, DESCRIPTION)
    for patterns in (CHECKPOINT_WEIGHTS, PICKLES):
        _snapshot(name, folder.name, patterns)
        if has_preferred_weights(folder):
            break
    if not (folder / MODULES).exists():
        _check_without_modules(name, folder.name)
    return folder


def _snapshot(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    """The folder of the commit in the hub's cache, which then has all files of the patterns that the hub has."""
    from huggingface_hub import snapshot_download  # a fifth of the exporter's start, and most exports need no hub

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (_http_error(), OSError, ValueError) as error:
        raise _failure(f"{name} is not a local folder and could not be downloaded", error) from error


def _check_without_modules(name: str, commit: str) -> None:
    """Raises ExportError if another program downloaded the folder, perhaps without modules.json, and no hub answers.

    Without that file a model of sentence-transformers would become a plain BERT. The hub's answer that the repository
    has no such file is kept in the hub's cache.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    if try_to_load_from_cache(name, MODULES, revision=commit) is not None:
        return
    try:
        hf_hub_download(name, MODULES, revision=commit)
    except LocalEntryNotFoundError as error:
        raise _failure(f"the hub's cache has {name} but does not know whether it has {MODULES}", error) from error
    except (EntryNotFoundError, HfHubHTTPError):
        return


def _http_error() -> type[Exception]:
    """The base class of all errors of the hub's HTTP library, which is requests before 1.0, and httpx after."""
    from huggingface_hub.errors import HfHubHTTPError

    status_error = HfHubHTTPError.__bases__[0]
    library = status_error.__module__.partition(".")[0]
    own = [one for one in status_error.__mro__ if one.__module__.partition(".")[0] == library]
    return cast("type[Exception]", own[-1])


def _failure(fault: str, error: Exception) -> ExportError:
    """HubUnavailable if no response came, or the response asks for patience or is a failure of the hub."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    cause = error
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        cause = error.__cause__  # of "it is not in the cache"
    response = getattr(cause, "response", None)
    asked = isinstance(cause, _http_error()) and type(cause).__name__ not in WRONG_ENDPOINT
    passes = asked and (response is None or response.status_code in TEMPORARY)
    return (HubUnavailable if passes else ExportError)(f"{fault}: {_reason(cause)}")


def _reason(error: Exception) -> str:
    """The first line of an error of the hub, and the way out."""
    from huggingface_hub import constants, errors

    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    elsewhere = "run `packbert download` with this name where there is a network, and copy HF_HOME here"
    if isinstance(error, errors.GatedRepoError):
        return f"{first}; accept its terms on {constants.ENDPOINT} and set HF_TOKEN to a token of that account"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{first}; check the name; for a private repository set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{first}; check the part after @: a branch, a tag or a commit"
    if constants.HF_HUB_OFFLINE:
        missing = f"it is not, or not completely, in {constants.HF_HUB_CACHE}"
        return f"{missing}, and HF_HUB_OFFLINE is set: unset it, or {elsewhere}"
    if isinstance(error, PermissionError):
        return f"{first}; set HF_HOME to a folder that is writable"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return f"{first}; make room in {constants.HF_HUB_CACHE}, or set HF_HOME to a folder with room"
    return f"{first}; check the network, HF_ENDPOINT ({constants.ENDPOINT}) and the name, or {elsewhere}"


@contextmanager
def _ends_at_once() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process: huggingface_hub's threads would first finish their files.

    What they have received so far stays in the hub's cache, and the next download continues there.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
        print("\npackbert: interrupted, nothing was written; the next download continues", file=sys.stderr)  # noqa: T201
        os._exit(130)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
