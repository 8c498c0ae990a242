"""The models of a service by name: the engine that answers for each name, and its swap for another."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from packbert.model_export.artifact.cpu import trim_heap

from .artifact import Artifact
from .engine.cpu import available_cores
from .engine.device import find_artifact
from .engine.engine import Device, ModelEngine, common_concurrency
from .errors import SHUTTING_DOWN, Invalid, NotFound, Unavailable
from .model_names import NamedModel
from .observability.metrics import Metrics, StateCollector, render
from .settings import Settings, SettingsError, named_models

UNNAMED = "default/not-specified"  # infinity's clients name no model so
LATEST = ":latest"  # what Ollama's clients add to a model's name
log = logging.getLogger("service")
Swapped = tuple[str, bool]  # the digest of the artifact that answers, and whether it is another than before
# calls a swap of a model when its turn has come
TakeTurn = Callable[["ServedModel", Callable[[], Awaitable[Swapped]]], Awaitable[Swapped]]


class ServedModel:
    """A name of the service, and the engine that answers for it."""

    shares: "Sequence[tuple[ServedModel, NamedModel]]" = ()  # the models that answer or repeat some of its requests
    repeating: "asyncio.Task[None] | None" = None  # a request of another model, for a comparison: the last

    def __init__(self, models: "Models", engine: ModelEngine, source: str) -> None:
        """`source`: of its artifact: a hub id, a checkpoint's folder or an artifact."""
        self.models, self.current, self.source, self.name = models, engine, source, engine.artifact.manifest.name
        self.settings, self.metrics, self.tracing = models.settings, models.metrics, models.tracing
        self.group = models.group
        self._swapping = asyncio.Lock()

    @property
    def artifact(self) -> Artifact:
        return self.current.artifact

    def refuse(self) -> NoReturn:
        """Raises Unavailable: the service drains."""
        raise Unavailable(SHUTTING_DOWN)

    def ready(self) -> str:
        """Why a request would not be answered now; empty when it would. The default is not ready while another model is
        loading."""
        return self.models.awaited or self.loaded()

    def loaded(self) -> str:
        """The reason of `ready`, whatever other workers do."""
        others = self.group.values() if self is self.models.default else ()
        own, *reasons = [one.current.readiness() for one in (self, *others)]
        return own or ("loading" if "loading" in reasons else "")

    async def swap(self, source: str = "") -> Swapped:
        """`_swap`, after a swap that another client asked for. Raises Unavailable as soon as the service drains: a load
        cannot be interrupted."""
        if self.models.refuses:
            self.refuse()
        swapping = asyncio.shield(asyncio.ensure_future(self.models.take_turn(self, partial(self._swap, source))))
        self.models.swaps.add(swapping)
        try:
            return await swapping
        except asyncio.CancelledError:
            if self.models.refuses:
                raise Unavailable(SHUTTING_DOWN) from None
            raise
        finally:
            self.models.swaps.discard(swapping)

    async def follow(self, folder: str, source: str) -> None:
        """Takes over what another worker has swapped: the artifact in `folder`, of `source`. Raises as `swap`."""
        await self._swap(folder, counts=False)
        self.source = source

    async def _swap(self, source: str, *, counts: bool = True) -> Swapped:  # counts: in the metrics
        """Lets the artifact of `source`, or of the same place as before, answer; a copy is another artifact.

        It is loaded and tested beside the model that answers, which is closed when its last request has ended. Raises
        Invalid if it cannot be served, and Unavailable if the service ends: nothing has changed.
        """
        count = self.metrics.swapped if counts else lambda *_: None
        async with self._swapping:
            old, fault = self.current, ""
            source = source or self.source
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
            self.source, self.current = source, new
            count(self.name, "swapped")
            log.info("%s: %s answers from now on, in place of %s", self.name, new.artifact.digest, old.artifact.digest)
            old.users.none.clear()
            if old.users.count:
                await old.users.none.wait()
            await old.close()
            del old
            await asyncio.to_thread(_give_back)
            return new.artifact.digest, True

    async def _open_another(self, source: str) -> ModelEngine | None:
        """The engine of `source`; None if its artifact answers already. Raises what finding and opening raise."""
        artifact = await asyncio.to_thread(find_artifact, self.settings.of_model(self.name, source))
        if artifact == self.artifact:
            return None
        new = ModelEngine(artifact, self.settings, self.metrics, device=self.models.device)
        try:
            await new.open()
            if self.current.health.draining:
                raise Unavailable(SHUTTING_DOWN)
        except BaseException:
            await new.close()
            raise
        return new


class Models:
    """The models of a service, the default first; `open` loads them, `drain` and `close` end them."""

    def __init__(self, engines: Sequence[ModelEngine]) -> None:
        """`engines` share a device. If the settings name no model and no key for swaps, a request names none either."""
        first, named = engines[0], named_models(engines[0].settings)
        self.settings, self.metrics, self.device = first.settings, first.metrics, first.device
        self.tracing, self.can_swap = first.device.tracing, first.settings.can_swap
        self.refuses = False  # new requests
        self.take_turn: TakeTurn = lambda _, swap: swap()  # at once
        self.awaited = ""  # why /ready is 503 though these models are loaded: other workers of the service are not
        self.swaps: set[asyncio.Future[Swapped]] = set()  # that requests wait for
        self.group: dict[str, ServedModel] = {}  # by name, the default first
        for one in engines:
            name, own = one.artifact.manifest.name, self.settings.model if one is first else None
            source = named[name].model if name in named else own or str(one.artifact.folder.parent)
            self.group[name] = ServedModel(self, one, source)
        self.share_requests(named)

    @property
    def default(self) -> ServedModel:
        """The first, which answers a request that names none."""
        return next(iter(self.group.values()))

    def find(self, name: str) -> ServedModel:
        """Raises NotFound, unless there is only one model: then it has any name."""
        if len(self.group) == 1 or name == UNNAMED:
            return self.default
        if name not in self.group and (name := name.removesuffix(LATEST)) not in self.group:
            models = ", ".join(self.group)
            raise NotFound(f"there is no model {name[:80]!r}: this server has {models}", code="model_not_found")
        return self.group[name]

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
            with suppress(Invalid, Unavailable):  # it is in the log, or the service ends
                log.info("%s: %s", name, "swapped" if (await model.swap(source))[1] else "unchanged")

    async def open(self) -> None:
        """Raises what loading raises: a graph or a tokenizer that does not load."""
        for model in self.group.values():
            await model.current.open()

    async def close(self) -> None:
        """Ends what `open` started; requests that still wait get 503."""
        for model in self.group.values():
            await model.current.close()

    def leave(self) -> None:
        """/ready is 503 from now on, so that load balancers send no more requests; new ones are still admitted."""
        for model in self.group.values():
            model.current.health.draining = True

    def drain(self) -> None:
        """Not ready from now on, and new requests are refused; admitted requests are still answered."""
        self.leave()
        self.refuses = True
        for swapping in self.swaps:
            swapping.cancel()

    def cancel_pending(self) -> None:
        """Answers requests that still wait with 503."""
        for model in self.group.values():
            model.current.batcher.close(SHUTTING_DOWN)

    def readiness(self) -> dict[str, str]:
        """Why each model would not answer now, by name, the default first; empty if it would."""
        return {name: model.ready() for name, model in self.group.items()}

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """The content of /metrics and its media type; `accept` is what the scraper asks for."""
        await self.metrics.update_workers()
        artifacts = [one.artifact for one in self.group.values()]
        state = StateCollector(artifacts, self.metrics.processes, self.readiness())
        return render([state, self.metrics.collector()], accept)


def _give_back() -> None:
    """Gives back the memory of closed models, which are parts of cycles. Quick if the libraries are frozen."""
    gc.collect()
    trim_heap()


def make_models(settings: Settings, artifacts: Sequence[Artifact], metrics: Metrics) -> Models:
    """The models of a service of these artifacts, the default first."""
    device = Device()
    if settings.tracing:
        from .observability.spans import Tracing  # a service without traces loads nothing of OpenTelemetry

        device.tracing = Tracing()
    metrics.exemplars = settings.tracing and settings.workers == 1
    if len(artifacts) > 1 or settings.can_swap:
        device.concurrency = common_concurrency(artifacts, settings.threads or available_cores())
    return Models([ModelEngine(one, settings, metrics, device=device) for one in artifacts])
