"""The models of a service by name: the backend that answers for each name, and its swap for another one."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from packbert.model_export.artifact.cpu import trim_heap

from .backend import Backend
from .engine.cpu import available_cores
from .engine.device import ArtifactChoice, find_artifact
from .engine.engine import common_concurrency
from .errors import SHUTTING_DOWN, Invalid, NotFound, Unavailable
from .model_names import NamedModel
from .observability.metrics import Metrics
from .settings import Settings, SettingsError, named_models

log = logging.getLogger("service")
# of a name, its source (a hub id or a folder) and a backend of the same process; raises where it cannot be served
MakeBackend = Callable[[str, str, Backend], Backend]


Swapped = tuple[str, bool]  # the digest of what answers, and whether it is another one than before
# calls a swap of a model when its turn has come
TakeTurn = Callable[["ServedModel", Callable[[], Awaitable[Swapped]]], Awaitable[Swapped]]


def _at_once(_: "ServedModel", swap: Callable[[], Awaitable[Swapped]]) -> Awaitable[Swapped]:
    return swap()


class ServedModel(Backend):
    """A name of the service, in front of the backend that answers for it.

    `open`, `close`, `leave`, `drain` and `cancel_pending` are those of the whole service: the server has the default.
    """

    group: "dict[str, ServedModel]"
    take_turn: TakeTurn = staticmethod(_at_once)  # of the workers of a service
    shares: "Sequence[tuple[ServedModel, NamedModel]]" = ()  # the models that answer or repeat some of its requests
    repeating: "asyncio.Task[None] | None" = None  # a request of another model, for a comparison: the last one

    def __init__(self, current: Backend, source: str, group: "dict[str, ServedModel]", make: MakeBackend) -> None:
        """Without that of Backend: it has no tokenizer and no tasks of its own. `source`: see MakeBackend."""
        self.settings = current.settings
        self.metrics, self.tracing = current.metrics, current.tracing
        self.leaving = self.draining = False
        self.name, self.group, self._make = current.artifact.manifest.name, group, make
        current.source = source
        group[self.name] = self
        self._point_to(current)
        self._swapping, self._opened = asyncio.Lock(), asyncio.Event()
        self._swaps: set[asyncio.Future[Swapped]] = set()  # that requests wait for

    def find(self, name: str) -> "ServedModel":
        """Raises NotFound, unless there is only one model: then it has any name."""
        if name not in self.group and len(self.group) > 1:
            models = ", ".join(self.group)
            raise NotFound(f"there is no model {name[:80]!r}: this server has {models}", code="model_not_found")
        return self.group.get(name, self)

    def admit(self, body_bytes: int) -> Any:
        """Only refuses: the body may name another model than this one, so `current` admits. As Backend.admit."""
        if self.draining:
            raise Unavailable(SHUTTING_DOWN)
        try:
            self.current.admit(body_bytes)
        except Unavailable:
            if len(self.group) == 1:
                raise

    async def swap(self, source: str = "") -> Swapped:
        """As `_swap`, after a swap that another client asked for. Raises Unavailable as soon as the service drains: a
        load cannot be interrupted."""
        if self.draining:
            raise Unavailable(SHUTTING_DOWN)
        swapping = asyncio.shield(asyncio.ensure_future(self.take_turn(self, partial(self._swap, source))))
        self._swaps.add(swapping)
        try:
            return await swapping
        except asyncio.CancelledError:
            if self.draining:
                raise Unavailable(SHUTTING_DOWN) from None
            raise
        finally:
            self._swaps.discard(swapping)

    async def follow(self, folder: str, source: str) -> None:
        """Takes over what another worker of the service has swapped: the artifact in `folder`, which is of `source`.

        Raises as `swap`.
        """
        await self._swap(folder, counts=False)
        self.current.source = source

    async def _swap(self, source: str, *, counts: bool = True) -> Swapped:
        """Lets the artifact of `source`, or of the same place as before, answer; a copy is another one.

        It is loaded and tested beside the one that answers, which is closed when its last request has ended. A swap
        during the start waits for the start of its model. `counts`: in the metrics. Raises Invalid where it cannot be
        served, and Unavailable where the service ends: nothing has changed.
        """
        count = self.metrics.swapped if counts else lambda *_: None
        await self._opened.wait()
        async with self._swapping:
            old, fault = self.current, ""
            source = source or old.source
            try:
                new = await self._open_another(source)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - the swap is refused, and the old model answers
                fault = f"{self.name} is not swapped for {source}: {type(error).__name__}: {error}"
            if fault:
                count(self.name, "refused")
                log.warning("%s", fault)
                await asyncio.to_thread(_give_back)
                raise Invalid(fault, code="artifact")
            if new is None:
                count(self.name, "unchanged")
                return old.artifact.digest, False
            new.source = new.source or source
            self._point_to(new)
            count(self.name, "swapped")
            log.info("%s: %s answers from now on, in place of %s", self.name, new.artifact.digest, old.artifact.digest)
            old.unused.clear()
            if old.users:
                await old.unused.wait()
            await old.close()
            del old
            await asyncio.to_thread(_give_back)
            return new.artifact.digest, True

    async def _open_another(self, source: str) -> Backend | None:
        """The backend of `source`; None where its artifact answers already. Raises what making and opening raise."""
        new = await asyncio.to_thread(self._make, self.name, source, self.current)
        if new.artifact == self.current.artifact:
            return None
        try:
            await new.open()
            if self.leaving:
                raise Unavailable(SHUTTING_DOWN)
        except BaseException:
            await new.close()
            raise
        return new

    def _point_to(self, backend: Backend) -> None:
        self.current, self.artifact, self.degraded = backend, backend.artifact, backend.degraded
        backend.on_fatal = lambda: self.default.on_fatal()
        backend.group = self.group

    def share_requests(self, named: Mapping[str, NamedModel]) -> None:
        """From now on each model shares its requests as `named` says."""
        for name, model in self.group.items():
            found = [(self.group[other], one) for other, one in named.items() if one.of == name and other in self.group]
            model.shares = [(other, one) for other, one in found if one.weight or one.shadow]

    async def reload(self, *, swaps: bool = True) -> None:
        """Takes the shares in the file of BERT_MODELS; with `swaps` swaps the models that changed."""
        try:
            named = named_models(self.settings)
        except SettingsError as error:
            log.error("nothing is swapped: %s", error)
            return
        self.share_requests(named)
        if not swaps:
            return
        if named and named.keys() != self.group.keys():
            log.warning("models are added and removed by a restart: this service has %s", ", ".join(self.group))
        for name, model in self.group.items():
            source = named[name].model if name in named else ""
            try:
                log.info("%s: %s", name, "swapped" if (await model.swap(source))[1] else "unchanged")
            except (Invalid, Unavailable):
                continue  # it is in the log, or the service ends

    async def open(self) -> None:
        for model in self.group.values():
            await model.current.open()
            model._opened.set()

    async def close(self) -> None:
        for model in self.group.values():
            await model.current.close()

    def leave(self) -> None:
        for model in self.group.values():
            model.leaving = True
            model.current.leave()

    def drain(self) -> None:
        for model in self.group.values():
            model.leaving = model.draining = True
            model.current.drain()
            for swapping in model._swaps:
                swapping.cancel()

    def cancel_pending(self) -> None:
        for model in self.group.values():
            model.current.cancel_pending()

    async def ready(self) -> str:
        """The default is not ready while another model is loading."""
        asked = [self, *self.group.values()] if self is self.default else [self]
        first, *others = [await one.current.ready() for one in asked]
        return first or ("loading" if "loading" in others else "")

    async def info(self) -> dict[str, Any]:
        return await self.current.info()

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        return await self.current.render_metrics(accept)


def _give_back() -> None:
    """Gives back the memory of closed models, which are parts of cycles. Quick where the libraries are frozen."""
    gc.collect()
    trim_heap()


def serve_models(backends: Sequence[Backend], make: MakeBackend) -> ServedModel:
    """The default, which is the first."""
    settings, group = backends[0].settings, dict[str, ServedModel]()
    named = named_models(settings)
    for one in backends:
        name, folder = one.artifact.manifest.name, str(one.artifact.folder.parent)
        ServedModel(one, named[name].model if name in named else settings.model or folder, group, make)
    default = next(iter(group.values()))
    default.share_requests(named)
    return default


def make_backend(settings: Settings, choices: Sequence[ArtifactChoice], metrics: Metrics) -> Backend:
    """That of a service of these models, the default first; a ServedModel where there are several, or they can be
    swapped."""

    def make(choice: ArtifactChoice, beside: Backend | None) -> Backend:
        return Backend(choice.artifact, settings, metrics, degraded=choice.degraded, beside=beside)

    def make_new(name: str, source: str, beside: Backend) -> Backend:
        return make(find_artifact(settings.of_model(name, source)), beside)

    first = make(choices[0], None)
    if len(choices) == 1 and not settings.can_swap:
        return first
    threads = settings.threads or available_cores()
    first.engine.device.concurrency = common_concurrency([one.artifact for one in choices], threads)
    return serve_models([first, *(make(one, first) for one in choices[1:])], make_new)
