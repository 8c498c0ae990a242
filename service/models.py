"""The models of a service by name: the backend that answers for each name, and its swap for another one."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from packbert.service.backend import Backend
from packbert.service.errors import SHUTTING_DOWN, Invalid, NotFound, ServiceError, Unavailable
from packbert.service.settings import SettingsError, named_models
from packbert.service.tasks.base import Tasks

log = logging.getLogger("service")
# of a name, its source (a hub id or a folder), a backend of the same process, and whether the swap begins in this
# process; raises where it cannot be served
MakeBackend = Callable[[str, str, Backend, bool], Backend]


class ServedModel(Backend):
    """A name of the service, in front of the backend that answers for it.

    `open`, `close`, `leave`, `drain` and `cancel_pending` are those of the whole service: the server has the default.
    """

    def __init__(self, current: Backend, source: str, group: "dict[str, ServedModel]", make: MakeBackend) -> None:
        """Without that of Backend: it has no tokenizer and no tasks of its own."""
        self.settings, self.metrics, self.tracing = current.settings, current.metrics, current.tracing
        self.startup_grace_seconds, self.announces = current.startup_grace_seconds, current.announces
        self.leaving = self.draining = False
        self.on_fatal = lambda: None
        self.name, self.source, self._models, self._make = current.artifact.manifest.name, source, group, make
        self.group = group
        group[self.name] = self
        self._point_to(current)
        self._lock = asyncio.Lock()  # one swap at a time
        self._swaps: set[asyncio.Task[bool]] = set()

    def find(self, name: str) -> "ServedModel":
        """Raises NotFound, unless there is only one model: then it has any name."""
        if (found := self._models.get(name)) is not None:
            return found
        if len(self._models) == 1:
            return self
        models = ", ".join(self._models)
        raise NotFound(f"there is no model {name[:80]!r}: this server has {models}", code="model_not_found")

    def admit(self, body_bytes: int) -> Any:
        """Only refuses: the body may name another model than this one, so `begin` admits. Raises as Backend.admit."""
        if self.draining:
            raise Unavailable(SHUTTING_DOWN)
        try:
            self.current.admit(body_bytes)
        except Unavailable:
            if len(self._models) == 1:
                raise

    def begin(self) -> tuple[Backend, Tasks]:
        """What a request has until `end`, whatever is swapped meanwhile. Raises as Backend.admit."""
        backend = self.current
        tasks = backend.admit(0)
        backend.users += 1
        return backend, tasks

    @staticmethod
    def end(backend: Backend) -> None:
        backend.users -= 1
        if not backend.users:
            backend.unused.set()

    async def swap(self, source: str = "", *, leads: bool = True) -> bool:
        """Whether another artifact answers now, that of `source` or of the same place as before.

        Without `leads` it answers in another process already.

        It is loaded and tested beside the one that answers, which is closed when its last request has ended. Raises
        Invalid where it cannot be served: then nothing has changed.
        """
        swap = asyncio.create_task(self._swap(source or self.source, leads))
        self._swaps.add(swap)
        swap.add_done_callback(self._swaps.discard)
        return await asyncio.shield(swap)  # whoever asked for it may leave

    async def _swap(self, source: str, leads: bool) -> bool:
        async with self._lock:
            old = self.current
            try:
                new = await asyncio.to_thread(self._make, self.name, source, old, leads)
                if new.artifact.digest == old.artifact.digest:
                    return False
                await self._open(new)
            except ServiceError:
                raise
            except Exception as error:
                log.warning("%s is not swapped for %s: %s", self.name, source, error)
                fault = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise Invalid(f"{self.name} is not swapped for {source}: {fault}", code="artifact") from error
            self._point_to(new)
            self.source = source if leads else self.source
            log.info("%s: %s answers from now on, in place of %s", self.name, new.artifact.digest, old.artifact.digest)
            old.unused.clear()
            if old.users:
                await old.unused.wait()
            await old.close()
            return True

    async def _open(self, new: Backend) -> None:
        try:
            await new.open()
        except BaseException:
            await new.close()
            raise

    def _point_to(self, backend: Backend) -> None:
        self.current, self.artifact, self.degraded = backend, backend.artifact, backend.degraded
        backend.on_fatal = lambda: next(iter(self._models.values())).on_fatal()
        backend.group = self.group

    async def reload(self) -> None:
        """Swaps each model whose artifact has changed, or whose line in the file of BERT_MODELS has."""
        try:
            sources: Mapping[str, str] = named_models(self.settings)
        except SettingsError as error:
            log.error("nothing is swapped: %s", error)
            return
        if sources and sources.keys() != self._models.keys():
            log.warning("models are added and removed by a restart: this service has %s", ", ".join(self._models))
        for name, model in self._models.items():
            try:
                changed = await model.swap(sources.get(name, ""))
            except Invalid as error:
                log.error("%s", error.message)
            else:
                log.info("%s: %s", name, "swapped" if changed else "unchanged")

    async def open(self) -> None:
        for model in self._models.values():
            await model.current.open()

    async def close(self) -> None:
        for model in self._models.values():
            for swap in list(model._swaps):
                swap.cancel()
            if model._swaps:
                await asyncio.wait(model._swaps)
            await model.current.close()

    def leave(self) -> None:
        for model in self._models.values():
            model.leaving = True
            model.current.leave()

    def drain(self) -> None:
        self.leave()
        for model in self._models.values():
            model.draining = True
            model.current.drain()

    def cancel_pending(self) -> None:
        for model in self._models.values():
            model.current.cancel_pending()

    async def ready(self) -> str:
        """The default is not ready while another model is loading."""
        default = next(iter(self._models.values()))
        asked = (self, *self._models.values()) if self is default else (self,)
        first, *others = [await one.current.ready() for one in asked]
        return first or ("loading" if "loading" in others else "")

    async def info(self) -> dict[str, Any]:
        return await self.current.info()

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        return await self.current.render_metrics(accept)
