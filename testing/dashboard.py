"""The dashboard in front of a made-up cluster, for tests, screenshots and measurements.

python -m testing.dashboard docs/dashboard      takes a screenshot of every page
"""

import asyncio
import math
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import uvicorn

from milligpu.dashboard.access import DashboardAccess, ViewRights
from milligpu.dashboard.app import DashboardApp, Explain
from milligpu.dashboard.collector import Collector
from milligpu.dashboard.hosts import KnownHosts
from milligpu.dashboard.report import report as make_report
from milligpu.history.store import HistoryStore
from milligpu.model.policy import SharePolicy
from milligpu.status.picture import Picture, WaitingRequest
from milligpu.status.prices import Prices
from milligpu.status.queue_values import CalendarSummary, ClusterQueues, QueueStatus, QueueUserStatus
from milligpu.wire.status import AcceleratorStats, GpuStatus, ShareUsage

_GIB = 1 << 30
_SECOND = 10**9
_MODELS = (("NVIDIA A100-SXM4-40GB", 40960), ("NVIDIA H100 80GB HBM3", 81559), ("Tesla T4", 15360))
PRICES = Prices("EUR", {"A100-SXM4-40GB": 2.2, "H100 80GB HBM3": 4.1})
# Namespace, pod, share, and how much of the share it uses at a given second.
_TENANTS: Sequence[tuple[str, str, int, Callable[[float], float]]] = (
    ("vision", "train-resnet-0", 500, lambda t: 0.94 + 0.05 * math.sin(t / 70)),
    ("speech", "finetune-7b", 1000, lambda t: 0.82 + 0.15 * math.sin(t / 300)),
    ("vision", "notebook-ana", 300, lambda _t: 0.0),
    ("search", "embedder-6d9f", 250, lambda t: 0.55 + 0.35 * math.sin(t / 45)),
    ("search", "ranker-5c7b", 400, lambda t: 0.18 + 0.05 * math.sin(t / 33)),
    ("batch", "sweep-14", 200, lambda t: 0.99 + 0.01 * math.sin(t)),
)

_QUEUES = {"vision": "ana", "speech": "bo"}
_TURNS = (
    "1st of 2 in research; waits for 1 GPU with 40Gi; room on gpu-node-1 is kept for it; starts by 21:40",
    "2nd of 2 in research; waits for 1 GPU with 40Gi after those before it; start unknown",
)


@dataclass
class MadeUpCluster:
    """A cluster of nodes with `per_node` GPUs whose tenants follow a curve."""

    nodes: int = 3
    per_node: int = 4
    started: float = 0.0

    def picture(self, at: float) -> Picture:
        """The cluster at a time."""
        gpus: list[GpuStatus] = []
        shares: list[ShareUsage] = []
        for number in range(self.nodes * self.per_node):
            node, index = divmod(number, self.per_node)
            name, model = f"gpu-node-{node + 1}", _MODELS[node % len(_MODELS)]
            uuid = f"GPU-{number:08x}-0000-4000-8000-{number:012x}"
            mine = list(self._shares(number, at, uuid, name, model))
            shares += mine
            slowed = (at - self.started) * (0.18 if number % 11 == 3 else 0.0)
            gpus.append(
                msgspec.structs.replace(_gpu(number, index, uuid, name, model, mine), throttled={"power": slowed})
            )
        memory = "InsufficientGPUMemory (best: gpu-node-3/1 has 6.1 of 9 GiB); try again when ranker-5c7b-9 ends"
        waiting = [
            WaitingRequest("vision", "train-vit-3", "", "", _TURNS[0], 1, "research", 1),
            WaitingRequest("vision", "train-vit-4", "", "", _TURNS[1], 2, "research", 2),
            WaitingRequest("speech", "decode-eval", "", "", memory, 3),
        ]
        held = sum(each.milli for each in shares if each.namespace in _QUEUES)
        queues = ClusterQueues(
            [
                QueueStatus("research", "", "fair-share", 2, 6000, 8000, held, 0, 2, ready=True),
                QueueStatus("serving", "", "priority", 1, 4000, None, 0, 0, 0, ready=True),
            ],
            [
                QueueUserStatus("research", "ana@example.com", 2100, 1840.0, 2),
                QueueUserStatus("research", "bo@example.com", 2000, 1660.0, 0),
            ],
            {
                (each.namespace, each.pod): ("research", f"{_QUEUES[each.namespace]}@example.com")
                for each in shares
                if each.namespace in _QUEUES
            },
            [CalendarSummary("office", "day", "night", "Wed 20:00 Europe/Berlin", "Holds", "")],
        )
        return Picture(
            at, "prod-eu", cluster=True, software=False, gpus=gpus, shares=shares, waiting=waiting, queues=queues
        )

    def _shares(self, number: int, at: float, uuid: str, node: str, model: tuple[str, int]) -> Iterator[ShareUsage]:
        free, place = 1000, number * 5 % len(_TENANTS)
        for offset in range(3):
            namespace, pod, milli, curve = _TENANTS[(place + offset) % len(_TENANTS)]
            if milli > free or number % 7 == 6:
                return
            free -= milli
            use = milli / 1000 * curve(at + 97 * number)
            limit = milli if namespace == "batch" else min(1000, milli * 2)
            elapsed = at - self.started
            mib = model[1] * milli // 1000
            yield ShareUsage(
                AcceleratorStats("nvidia", model[0], uuid, mib << 20, int((mib << 20) * 0.7), round(100 * use)),
                milli=milli,
                limit=limit,
                mib=mib,
                whole=milli == 1000,
                namespace=namespace,
                pod=f"{pod}-{number}",
                container="main",
                node=node,
                memory_peak=int((mib << 20) * 0.8),
                utilization=use,
                waiting=False,
                gpu_time_ns=int(_integral(milli, curve, self.started, elapsed, 97 * number) * _SECOND),
                waiting_ns=int(elapsed * 0.4 * _SECOND) if namespace == "batch" else 0,
                throttled_ns=int(elapsed * 0.35 * _SECOND) if namespace == "batch" else 0,
                refusals=0,
            )


def _integral(milli: int, curve: Callable[[float], float], start: float, seconds: float, shift: float) -> float:
    """GPU seconds used so far; a coarse sum is enough, as long as it grows."""
    step = 10.0
    whole = int(seconds // step)
    total = sum(curve(start + k * step + shift) for k in range(whole)) * step
    return milli / 1000 * (total + curve(start + whole * step + shift) * (seconds - whole * step))


def _gpu(  # noqa: PLR0917 - all of them name one GPU
    number: int, index: int, uuid: str, node: str, model: tuple[str, int], shares: Sequence[ShareUsage]
) -> GpuStatus:
    held, used = sum(each.milli for each in shares), sum(each.utilization or 0.0 for each in shares)
    bad = number % 40 == 9
    return GpuStatus(
        index,
        uuid,
        model[0],
        1000,
        model[1],
        1000 - held,
        max(0, model[1] - sum(each.mib for each in shares)),
        node=node,
        state="unhealthy" if bad else "ok",
        message="XID 79: the GPU has fallen off the bus" if bad else "",
        memory_used=sum(each.memory_used or 0 for each in shares),
        utilization=used,
        policy=SharePolicy.BEST_EFFORT,
        temperature=34 + round(38 * used),
        power=45 + 270 * used,
    )


@dataclass
class RunningDashboard:
    """A dashboard that serves; `cluster` may be changed."""

    url: str
    secret: str
    collector: Collector
    read: list[Callable[[float], Picture]]
    stop: Callable[[], None]
    report: Callable[[], str]
    """Makes the page that `milligpu dashboard --save` writes."""

    @property
    def opened(self) -> str:
        """The address that logs in, once."""
        return f"{self.url}/open?secret={self.secret}"


@contextmanager
def dashboard(
    picture: Callable[[float], Picture],
    *,
    access: DashboardAccess | None = None,
    past_s: int = 0,
    interval_s: float = 0.5,
    prices: Prices = PRICES,
    explain: Explain | None = None,
    port: int = 0,
) -> Generator[RunningDashboard]:
    """Serve these pictures from this process, with a history of the last `past_s` seconds."""
    access = access or DashboardAccess(owner=ViewRights("tester", everything=True))
    read = [picture]
    with tempfile.TemporaryDirectory() as folder:
        now = time.time()
        store = HistoryStore(Path(folder, "history.db"), now=lambda: now)
        _fill(store, picture, now, past_s)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        collector = Collector(lambda: read[0](time.time()), store, interval_s=interval_s, prices=prices)
        port = listener.getsockname()[1]
        pages = DashboardApp(collector, access, explain=explain)
        app = KnownHosts(pages.asgi(), port)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        ready = threading.Event()

        async def serve() -> None:
            await collector.collect()
            collecting = asyncio.create_task(collector.run())
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            ready.set()
            await serving
            collecting.cancel()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        assert ready.wait(60), "the dashboard did not start"

        def stop() -> None:
            server.should_exit = True
            thread.join(20)

        try:
            report = partial(make_report, collector, pages.templates)
            yield RunningDashboard(f"http://127.0.0.1:{port}", access.secret, collector, read, stop, report)
        finally:
            stop()
            listener.close()
            store.close()


def _fill(store: HistoryStore, picture: Callable[[float], Picture], now: float, past_s: int) -> None:
    from milligpu.status.sampling import Sampler  # noqa: PLC0415

    sampler = Sampler(10.0)
    for at in range(int(now) - past_s, int(now), 10):
        shown = picture(float(at))
        store.add(at, sampler.sample(replace(shown, at=float(at))))


PAGES = {
    "overview": "/",
    "gpus": "/gpus",
    "gpu": "/gpus/GPU-00000000-0000-4000-8000-000000000000",
    "node": "/nodes/gpu-node-1",
    "shares": "/shares",
    "pod": "/pods/vision/train-resnet-0-0",
    "waiting": "/waiting",
    "waiting-pod": "/pods/vision/train-vit-3",
    "queues": "/queues",
    "cost": "/owners",
    "health": "/health",
    "settings": "/settings",
}
SIZES = {"wide": (1280, 800), "phone": (390, 844)}


def _explain(_namespace: str, pod: str) -> tuple[str, Sequence[str]]:
    if pod.startswith("train-vit"):
        return _TURNS[0], [f"Queued: {_TURNS[0]}"]
    return "on gpu-node-1; main: GPU-00000000 0.5 up to 1 with 20Gi; share policy of the GPU: best-effort", [
        "Started: Container started",
        "Scheduled: Successfully assigned to gpu-node-1",
    ]


def _take(folder: Path) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    cluster = MadeUpCluster(started=time.time() - 3700)
    with (
        dashboard(
            cluster.picture,
            past_s=3500,
            interval_s=2.0,
            explain=_explain,
        ) as served,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"]) as browser,
    ):
        context = browser.new_context(device_scale_factor=1)
        page = context.new_page()
        page.goto(served.opened)
        for size, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme=theme)
                for name, path in PAGES.items():
                    page.goto(served.url + path)
                    charts = page.locator(".chart:not(.empty)").count()
                    if charts:
                        page.locator(".uplot canvas").first.wait_for()
                    page.wait_for_timeout(300)
                    page.screenshot(path=folder / f"{name}-{size}-{theme}.png", full_page=size == "phone")


if __name__ == "__main__":
    _take(Path(sys.argv[1]))
