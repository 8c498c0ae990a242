"""What is read at a scrape, and its text formats."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from ..artifact import Artifact

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
END = b"# EOF\n"


def render(registries: Sequence[CollectorRegistry], accept: str = "") -> tuple[bytes, str]:
    """The text and its media type: OpenMetrics where the scraper's Accept header names it."""
    if OPENMETRICS not in accept:
        return b"".join(map(generate_latest, registries)), CONTENT_TYPE
    parts = [openmetrics.generate_latest(one).removesuffix(END) for one in registries]  # type: ignore[no-untyped-call]
    return b"".join([*parts, END]), openmetrics.CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    """The artifact, readiness, and prometheus_client's own figures of each process."""

    artifacts: Sequence[Artifact]  # one for each model, the default first
    processes: Mapping[str, int]  # process id by name; no label for the name ""
    readiness: Mapping[str, str]  # of each model, as Backend.readiness

    def collect(self) -> Iterable[Metric]:
        names = ["model", "license", "language", "digest", "precision", "device", "version"]
        info = GaugeMetricFamily("bert_info", "Always 1; the labels say what answers", labels=names)
        for one in self.artifacts:
            manifest, identity = one.manifest, one.manifest.identity
            languages = ", ".join(identity.languages)
            values = [manifest.name, identity.license, languages, one.digest, manifest.precision, manifest.device]
            info.add_metric([*values, version("packbert")], 1)
        yield info
        ready = {name: float(not reason) for name, reason in self.readiness.items()}
        yield GaugeMetricFamily("bert_ready", "1 while /ready is 200", value=next(iter(ready.values()), 0.0))
        by_model = GaugeMetricFamily("bert_model_ready", "1 while /models/NAME/ready is 200", labels=["model"])
        for name, value in ready.items():
            by_model.add_metric([name], value)
        yield by_model
        families: dict[str, Metric] = {}
        for name, process in self.processes.items():
            for family in ProcessCollector(pid=partial(int, process), registry=None).collect():
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {"process": name} if name else {}, sample.value)
        yield from families.values()


def register_state(
    artifacts: Sequence[Artifact], processes: Mapping[str, int], readiness: Mapping[str, str]
) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(StateCollector(artifacts, processes, readiness))
    return registry
