"""The text of registries for a scrape: Prometheus' own format, or OpenMetrics, which has exemplars."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
END = b"# EOF\n"


def render(registries: Sequence[CollectorRegistry], accept: str = "") -> tuple[bytes, str]:
    """The text and its media type: OpenMetrics where the scraper's Accept header names it."""
    if OPENMETRICS not in accept:
        return b"".join(map(generate_latest, registries)), CONTENT_TYPE
    parts = [openmetrics.generate_latest(one).removesuffix(END) for one in registries]  # type: ignore[no-untyped-call]
    return b"".join([*parts, END]), openmetrics.CONTENT_TYPE_LATEST
