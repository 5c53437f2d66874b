"""The agent's pages: `/metrics` for Prometheus, `/stats` as JSON, `/livez` and `/readyz` for the kubelet."""

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector


class _Once(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(families: Iterable[Metric]) -> bytes:
    """Metric families as text."""
    registry = CollectorRegistry()
    registry.register(_Once(families))
    return generate_latest(registry)


def application(
    read: Callable[[], Awaitable[None]],
    metrics: Callable[[], Iterable[Metric]],
    stats: Callable[[], object],
    ready: Callable[[], bool],
) -> web.Application:
    """The routes; `read` is called before anybody is told about metrics or statistics."""

    async def on_metrics(_request: web.Request) -> web.Response:
        await read()
        return web.Response(body=exposition(metrics()), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def on_stats(_request: web.Request) -> web.Response:
        await read()
        return web.json_response(stats())

    async def on_live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def on_ready(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if ready() else web.Response(status=503, text="not registered\n")

    found = web.Application()
    routes = {"/metrics": on_metrics, "/stats": on_stats, "/livez": on_live, "/readyz": on_ready}
    found.add_routes([web.get(path, handler) for path, handler in routes.items()])
    return found
