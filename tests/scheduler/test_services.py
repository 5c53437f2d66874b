"""The controller of services, with an API server in memory and pods that serve real pages."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, cast

import msgspec
import pytest

from milligpu import dialects
from milligpu.cluster.read import NodeReader, PodReader
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.kube.events import EventRecorder
from milligpu.model import names
from milligpu.model.gpu_service import LoadSource
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.scheduler.resizer import Resizer
from milligpu.scheduler.service_load import PAGE_MAX, LoadReader
from milligpu.scheduler.service_pods import DELETION_COST, watched_pod
from milligpu.scheduler.services import ServiceController
from milligpu.wire.grant import decode_grant, encode_grant
from milligpu.wire.kubernetes import KubePod
from testing.controlplane.objects import apply_json_patch
from tests.cluster.objects import node, pod

Json = dict[str, Any]
DEADLINE_S = 60.0
CREATED = 1794985200.0
"""When all pods were created, as their metadata says."""
SERVICE = names.service_path("default", "chat")
SCALE = "/apis/apps/v1/namespaces/default/deployments/chat/scale"


class Engine:
    """What all pods here show: they have one address, and the page says what the service as a whole runs."""

    def __init__(self) -> None:
        self.page = b""
        self.status = 200
        self.headers: dict[str, str] = {}
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(engine.status)
                for key, value in engine.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(engine.page)))
                self.end_headers()
                self.wfile.write(engine.page)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def run(self, requests: float) -> None:
        self.page = f"running {requests}\n".encode()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine()
    found.run(0)
    yield found
    found.stop()


def served_pod(name: str, engine: Engine, *, milli: int = 200, **more: Any) -> Json:
    """A pod of the deployment; `held` is what it is granted, of which GPU."""
    gpu, held = more.get("gpu", "GPU-n0-0"), more.get("held")
    grant = None
    if held is not None:
        share = Share(Milli(held), Mib(1024), Milli(max(held, milli)))
        grant = Grant(f"uid-{name}", "n0", {"main": (GpuShare(gpu, share),)})
    found = pod(name, milli, grant=grant, phase="Running" if grant else "Pending")
    found["metadata"] |= {
        "labels": {"app": "chat", "pod-template-hash": more.get("version", "1")},
        "creationTimestamp": "2026-11-18T07:00:00Z",
        "resourceVersion": "1",
    }
    found["metadata"]["annotations"] |= more.get("notes", {})
    container = found["spec"]["containers"][0]
    container["ports"] = [{"containerPort": engine.port}]
    container["resources"]["limits"][names.VGPU_MEMORY] = str(more.get("mib", 1024))
    found["status"] |= {"podIP": "127.0.0.1"}
    if more.get("ready", True) and grant is not None:
        found["status"]["conditions"] = [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-18T07:00:07Z"}
        ]
    return found


def service(engine: Engine, **spec: Any) -> Json:
    wanted: Json = {
        "scaleTargetRef": {"kind": "Deployment", "name": "chat"},
        "load": {"port": engine.port, "running": "running"},
        "target": {"running": 100},
        "share": {"max": 800},
        **spec,
    }
    meta = {"name": "chat", "namespace": "default", "uid": "uid-service", "resourceVersion": "1", "generation": 1}
    return {"metadata": meta, "spec": wanted}


class MemoryApi:
    """Objects by path; lists, watches that only wait, and patches."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.news: dict[str, asyncio.Queue[Json]] = {}
        self.quotas: list[Json] = []

    async def get(self, path: str, *, timeout_s: float = 0.0) -> bytes:
        del timeout_s
        where = path.partition("?")[0]
        if where in {"/api/v1/pods", names.SERVICES_PATH}:
            kind = "/pods/" if where == "/api/v1/pods" else "/gpuservices/"
            items = [each for key, each in self.objects.items() if kind in key]
            return msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items})
        if where.endswith(("/resourcequotas", "/horizontalpodautoscalers")):
            return msgspec.json.encode({"items": self.quotas if where.endswith("quotas") else []})
        if where not in self.objects:
            raise ApiRefused(f"GET {where}", 404, "not found")
        return msgspec.json.encode(self.objects[where])

    async def send(self, method: str, path: str, body: Any = None, *, kind: str = "", accept: str = "") -> bytes:
        del method, accept
        where = path.removesuffix("/status")
        document = msgspec.to_builtins(body)
        found = self.objects[where]
        if "json-patch" in kind:
            found = apply_json_patch(found, document)
        else:
            notes = found["metadata"].setdefault("annotations", {})
            for key, value in document["metadata"]["annotations"].items():
                notes.pop(key, None) if value is None else notes.update({key: value})
        found["metadata"] = {**found.get("metadata", {}), "resourceVersion": str(len(json.dumps(found)) + 7)}
        self.objects[where] = found
        self.tell(where, "MODIFIED")
        return msgspec.json.encode(found)

    def tell(self, where: str, kind: str) -> None:
        watched = "/api/v1/pods" if "/pods/" in where else names.SERVICES_PATH
        if watched in self.news and not where.endswith("/scale"):
            self.news[watched].put_nowait({"type": kind, "object": self.objects[where]})

    async def lines(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        del silence_s
        queue = self.news[path.partition("?")[0]] = asyncio.Queue[Json]()
        while True:
            yield [msgspec.json.encode(await queue.get())]


class Cluster:
    """One node, its pods, and the controller."""

    def __init__(self, engine: Engine, *pods: Json, cards: int = 1, replicas: int = 1, **card: Any) -> None:
        self.engine = engine
        self.api = MemoryApi()
        self.state = ClusterState(Placer(Snapshot()), time.monotonic)
        self.reader = PodReader(dialects.read_pod)
        observed = NodeReader().read(node("n0", cards, **card))
        assert observed is not None
        self.state.put_node(observed)
        for each in pods:
            self.put(each)
        selector = {"spec": {"replicas": replicas}, "status": {"selector": "app=chat"}}
        self.api.objects[SCALE] = selector

    def put(self, found: Json) -> None:
        where = f"/api/v1/namespaces/default/pods/{found['metadata']['name']}"
        self.api.objects[where] = found
        self.state.put_pod(self.reader.read(msgspec.json.decode(msgspec.json.encode(found), type=KubePod)))
        self.api.tell(where, "MODIFIED")

    def pod(self, name: str) -> Json:
        return self.api.objects[f"/api/v1/namespaces/default/pods/{name}"]

    def milli(self, name: str) -> int:
        return (
            decode_grant(self.pod(name)["metadata"]["annotations"][names.GRANT]).containers["main"][0].share.milli
        )

    def reason(self, condition: str) -> str:
        found = self.api.objects[SERVICE].get("status", {}).get("conditions", [])
        return next((each["reason"] for each in found if each["type"] == condition), "")

    @asynccontextmanager
    async def controlled(self, found: Json) -> AsyncGenerator[None]:
        """Let the controller run."""
        self.api.objects[SERVICE] = found
        api = cast(ApiClient, self.api)
        events = EventRecorder(api, "milligpu.dev/scheduler", "test", time.monotonic)
        resizer = Resizer(api, events, self.state, lambda: True, time.monotonic, pods=self.reader)
        controller = ServiceController(
            api,
            self.state,
            resizer,
            events,
            lambda: True,
            now=time.monotonic,
            clock=lambda: CREATED + 10,
            on_freed=lambda: None,
        )
        running = asyncio.create_task(controller.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.05)


def test_the_share_follows_the_load_and_a_deleted_service_gives_it_back(engine: Engine) -> None:
    async def scene() -> None:
        cluster = Cluster(engine, served_pod("a", engine, held=200))
        engine.run(60)
        async with cluster.controlled(service(engine)):
            await cluster.until(lambda: cluster.milli("a") == 600)
            assert cluster.pod("a")["metadata"]["annotations"][names.SERVICE] == "chat"
            await cluster.until(lambda: cluster.reason("Scaled") == "AsNeeded")
            assert cluster.state.placer.snapshot.milli[0, 0] == 400
            gone = cluster.api.objects.pop(SERVICE)
            cluster.api.news[names.SERVICES_PATH].put_nowait({"type": "DELETED", "object": gone})
            await cluster.until(lambda: names.SERVICE not in cluster.pod("a")["metadata"]["annotations"])
        assert cluster.milli("a") == 200

    asyncio.run(scene())


def test_a_leader_that_finds_a_share_without_its_service_gives_it_back(engine: Engine) -> None:
    async def scene() -> None:
        cluster = Cluster(engine, served_pod("a", engine, held=600, notes={names.SERVICE: "gone"}))
        async with cluster.controlled(service(engine, scaleTargetRef={"kind": "Deployment", "name": "another"})):
            await cluster.until(lambda: cluster.milli("a") == 200)

    asyncio.run(scene())


def test_metrics_that_are_missing_keep_the_last_decision(engine: Engine) -> None:
    async def scene() -> None:
        cluster = Cluster(engine, served_pod("a", engine, held=200))
        engine.run(60)
        async with cluster.controlled(service(engine)):
            await cluster.until(lambda: cluster.milli("a") == 600)
            engine.page = b"running NaN\n"
            await cluster.until(lambda: cluster.reason("MetricsFresh") == "MetricsMissing")
            engine.page = b"other 1\n"
            await cluster.until(lambda: cluster.reason("MetricsFresh") == "CounterUnknown")
            assert cluster.milli("a") == 600

    asyncio.run(scene())


def test_replicas_are_added_one_decision_at_a_time(engine: Engine) -> None:
    async def scene() -> None:
        cluster = Cluster(engine, served_pod("a", engine, held=200), cards=2)
        engine.run(90)
        async with cluster.controlled(service(engine, share={"max": 400}, replicas={"min": 1, "max": 8})):
            await cluster.until(lambda: cluster.api.objects[SCALE]["spec"]["replicas"] == 3)
            await cluster.until(lambda: cluster.reason("Scaled") == "WaitingForStart")
            assert cluster.api.objects[SCALE]["spec"]["replicas"] == 3

    asyncio.run(scene())


def test_of_too_many_pods_the_one_with_the_least_room_is_marked_and_goes(engine: Engine) -> None:
    async def scene() -> None:
        other = served_pod("b", engine, held=200, gpu="GPU-n0-1")
        cluster = Cluster(engine, served_pod("a", engine, held=200), other, cards=2, replicas=2)
        full = pod(
            "full",
            700,
            grant=Grant("uid-full", "n0", {"main": (GpuShare("GPU-n0-1", Share(Milli(700), Mib(1), Milli(700))),)}),
        )
        cluster.put(full)
        async with cluster.controlled(service(engine, replicas={"min": 1, "max": 1})):
            await cluster.until(lambda: cluster.api.objects[SCALE]["spec"]["replicas"] == 1)
        costs = [cluster.pod(name)["metadata"]["annotations"].get(DELETION_COST) for name in ("a", "b")]
        assert costs == [None, "-100"]

    asyncio.run(scene())


def test_a_quota_that_counts_shares_keeps_pods_at_their_template(engine: Engine) -> None:
    async def scene() -> None:
        cluster = Cluster(engine, served_pod("a", engine, held=200))
        cluster.api.quotas = [{"metadata": {"name": "q"}, "spec": {"hard": {f"requests.{names.VGPU}": "1000"}}}]
        engine.run(60)
        async with cluster.controlled(service(engine)):
            await cluster.until(lambda: cluster.reason("Scaled") == "QuotaCountsTemplate")
        assert cluster.milli("a") == 200

    asyncio.run(scene())


def test_an_update_on_a_full_gpu_borrows_the_old_pods_guarantee(engine: Engine) -> None:
    """Each step is what the cluster does next: the pod is bound, is Ready, and the old one goes."""

    async def scene() -> None:
        old = served_pod("old", engine, milli=600, held=600)
        full = pod(
            "full",
            400,
            grant=Grant("uid-full", "n0", {"main": (GpuShare("GPU-n0-0", Share(Milli(400), Mib(1), Milli(400))),)}),
        )
        cluster = Cluster(engine, old, full)
        cluster.put(served_pod("new", engine, milli=600, version="2"))
        async with cluster.controlled(service(engine, share={"max": 600})):
            await cluster.until(lambda: cluster.milli("old") == 0)
            entry = cluster.state.entry("uid-new")
            assert entry is not None
            await cluster.until(lambda: entry.grant is not None)
            await cluster.until(lambda: cluster.reason("Updated") == "LendingShare")
            assert cluster.milli("full") == 400
            # It is bound and loads: the old pod has its guarantee back.
            cluster.put(served_pod("new", engine, milli=600, version="2", held=600, ready=False))
            await cluster.until(lambda: (cluster.milli("old"), cluster.milli("new")) == (600, 0))
            await cluster.until(lambda: cluster.reason("Updated") == "Updating")
            # It is Ready: it has the guarantee.
            ready = cluster.pod("new")
            ready["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            cluster.put(ready)
            await cluster.until(lambda: (cluster.milli("old"), cluster.milli("new")) == (0, 600))

    asyncio.run(scene())


def test_memory_that_holds_one_version_is_named(engine: Engine) -> None:
    async def scene() -> None:
        old = served_pod("old", engine, milli=600, held=600)
        notes = old["metadata"]["annotations"]
        share = Share(Milli(600), Mib(12000), Milli(600))
        notes[names.GRANT] = encode_grant(Grant("uid-old", "n0", {"main": (GpuShare("GPU-n0-0", share),)}))
        cluster = Cluster(engine, old)
        cluster.put(served_pod("new", engine, milli=600, version="2", mib=12000))
        async with cluster.controlled(service(engine, share={"max": 600})):
            await cluster.until(lambda: cluster.reason("Updated") == "MemoryHoldsOneVersion")
            found = cluster.api.objects[SERVICE]["status"]["conditions"]
            [updated] = [each["message"] for each in found if each["type"] == "Updated"]
            assert "4384Mi of 16Gi free next to the present pod, and 12000Mi are needed" in updated
            assert cluster.milli("old") == 600

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"port": 1}, "does not declare TCP port 1"),
        ({"status": 302, "headers": {"Location": "/metrics"}}, "302"),
        ({"page": b"x" * (PAGE_MAX + 1)}, f"longer than {PAGE_MAX} bytes"),
    ],
)
def test_only_a_declared_port_is_read_without_redirects_and_up_to_a_length(
    engine: Engine, change: Json, problem: str
) -> None:
    async def scene() -> None:
        for key, value in change.items():
            if key != "port":
                setattr(engine, key, value)
        found = msgspec.json.decode(msgspec.json.encode(served_pod("a", engine, held=200)), type=KubePod)
        source = LoadSource(change.get("port", engine.port), running="running")
        loads, problems = await LoadReader().read([watched_pod(found)], source)
        assert loads == {}
        assert problem in problems["uid-a"].message

    asyncio.run(scene())


def test_the_address_of_a_pod_with_host_network_is_not_read(engine: Engine) -> None:
    async def scene() -> None:
        made = served_pod("a", engine, held=200)
        made["spec"]["hostNetwork"] = True
        found = msgspec.json.decode(msgspec.json.encode(made), type=KubePod)
        _, problems = await LoadReader().read([watched_pod(found)], LoadSource(engine.port, running="running"))
        assert "at an address of its own" in problems["uid-a"].message

    asyncio.run(scene())
