"""The agent's pages: `/metrics` for Prometheus, `/stats` as JSON, `/livez` and `/readyz` for the kubelet."""

from collections.abc import Awaitable, Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from milligpu.http_server import STANDBY, HttpResponse, HttpRoutes, text_response


class _Once(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def metrics_text(families: Iterable[Metric]) -> bytes:
    """Metric families as text."""
    registry = CollectorRegistry()
    registry.register(_Once(families))
    return generate_latest(registry)


def agent_routes(
    read: Callable[[], Awaitable[None]],
    metrics: Callable[[], Iterable[Metric]],
    stats: Callable[[], bytes],
    ready: Callable[[], bool],
    alive: Callable[[], bool],
) -> HttpRoutes:
    """Return the routes; `read` refreshes the readings before metrics and statistics are shown."""

    async def on_metrics() -> HttpResponse:
        await read()
        return HttpResponse(200, metrics_text(metrics()), CONTENT_TYPE_LATEST)

    async def on_stats() -> HttpResponse:
        await read()
        return HttpResponse(200, stats(), "application/json")

    async def on_live() -> HttpResponse:
        return text_response("ok\n") if alive() else text_response("the driver does not answer\n", STANDBY)

    async def on_ready() -> HttpResponse:
        return text_response("ok\n") if ready() else text_response("not registered\n", STANDBY)

    return HttpRoutes(get={"/metrics": on_metrics, "/stats": on_stats, "/livez": on_live, "/readyz": on_ready})
