"""The process behind `milligpu dashboard`: collector, pages and server."""

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn

from milligpu.dashboard.access import DashboardAccess, TokenRights, ViewRights
from milligpu.dashboard.app import DashboardApp
from milligpu.dashboard.collector import Collector
from milligpu.dashboard.hosts import KnownHosts
from milligpu.dashboard.idle_actions import IdleActions
from milligpu.dashboard.report import report
from milligpu.history.prometheus import PrometheusHistory
from milligpu.history.store import HistoryReader, HistoryStore
from milligpu.kube import config, fetch
from milligpu.model.errors import Unavailable
from milligpu.status.look import cluster_name, cluster_picture, machine_picture
from milligpu.status.pod import explain_pod
from milligpu.status.prices import Prices

_EVENTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """How one dashboard runs."""

    cluster: bool
    kubeconfig: str | None
    host: str
    port: int
    tokens: bool
    tls: tuple[str, str] | None
    """Files of certificate and key."""
    interval_s: float
    history: Path
    prices: Prices
    save: Path | None = None
    """Where to write a report at the end."""
    prometheus: str = ""
    """Address of a Prometheus to ask instead of an own history."""
    act: bool = False
    """Whether to do what namespaces and queues ask for about idle pods."""


class _StoppableServer(uvicorn.Server):
    """Ends after a signal instead of dying of it, so that what was measured can be saved."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stop)
        yield

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def serve_dashboard(settings: DashboardSettings, *, say: Callable[[str], None]) -> None:
    """Serve until a signal; `say` gets the address to open."""
    listener = _listen(settings)
    asyncio.run(_serve(settings, listener, say))


def _listen(settings: DashboardSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        # The address is printed before the server runs: a browser that is fast waits.
        listener.listen()
    except OSError as error:
        listener.close()
        hint = "choose another with --listen, or --listen 127.0.0.1:0 for any free port"
        raise Unavailable(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}", hint=hint
        ) from None
    return listener


async def _serve(settings: DashboardSettings, listener: socket.socket, say: Callable[[str], None]) -> None:
    read = machine_picture
    if settings.cluster:
        read = partial(cluster_picture, settings.kubeconfig, cluster_name(settings.kubeconfig))
    # What cannot be read at the start is an error of the command, not of a page.
    await asyncio.to_thread(read)
    store: HistoryStore | PrometheusHistory
    if settings.prometheus:
        store = past = PrometheusHistory(settings.prometheus, time.time)
    else:
        store, past = HistoryStore(settings.history), HistoryReader(settings.history)
    act = None
    if settings.act:
        cluster = config.find_cluster(settings.kubeconfig)
        act = IdleActions(lambda: config.blocking_client(cluster), past).act
    collector = Collector(read, store, interval_s=settings.interval_s, prices=settings.prices, act=act)
    access = DashboardAccess(
        owner=None if settings.tokens else ViewRights("you", everything=True),
        tokens=TokenRights(config.find_cluster(settings.kubeconfig)) if settings.tokens else None,
    )
    explain = partial(explained, settings.kubeconfig) if settings.cluster else None
    await collector.collect()
    port = listener.getsockname()[1]
    dashboard = DashboardApp(collector, access, explain=explain)
    app = dashboard.asgi()
    guarded = app if settings.tokens else KnownHosts(app, port)
    server = _StoppableServer(
        uvicorn.Config(
            guarded,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            # Open event streams must not hold the process back.
            timeout_graceful_shutdown=1,
            ssl_certfile=settings.tls[0] if settings.tls else None,
            ssl_keyfile=settings.tls[1] if settings.tls else None,
        )
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{'https' if settings.tls else 'http'}://{host}:{port}/"
    say(f"open {address}open?secret={access.secret}" if access.secret else f"open {address}")
    collecting = asyncio.create_task(collector.run())
    try:
        await server.serve(sockets=[listener])
    finally:
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting
        if settings.save is not None:
            settings.save.parent.mkdir(parents=True, exist_ok=True)
            settings.save.write_text(report(collector, dashboard.templates), encoding="utf-8")
        if isinstance(store, HistoryStore):
            store.close()


def explained(kubeconfig: str | None, namespace: str, pod: str) -> tuple[str, Sequence[str]]:
    """Explain a pod and list its events, the latest first."""
    with config.blocking_client(config.find_cluster(kubeconfig)) as client:
        events = fetch.pod_events(client, namespace, pod)
        return explain_pod(client, namespace, pod).text, events[:_EVENTS_SHOWN]
