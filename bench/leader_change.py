"""A new leader in a cluster with many pods: how soon it is ready, and how fast its webhook answers meanwhile.

    PYTHONPATH=. python bench/scheduler.py --nodes 5000 --existing 100000 --leader-change

Two instances of the service run with their webhooks. The leader is stopped; the other one takes over, lists the
cluster and becomes ready. Meanwhile its webhook is sent reviews at a steady rate, over TLS as the API server does.

The pods are written into etcd directly, many in a transaction, because the API server would take minutes to create
them. Each is a copy of one of two pods that were created and given a status through the API server. It has a name,
uid and node of its own, and a grant if it holds a share. The API server reads them from etcd as any others.
"""

import asyncio
import base64
import contextlib
import copy
import json
import os
import re
import signal
import ssl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from lightkube.resources.core_v1 import ServiceAccount

from devcluster.api import list_in
from devcluster.cluster import Cluster
from devcluster.controlplane import DEFAULT_SCHEDULER
from devcluster.platform import NAMESPACE, SchedulerService, account_kubeconfig, free_port, install
from devcluster.process import Process
from devcluster.wait import until
from milligpu.kube import config
from milligpu.kube.api import MERGE_PATCH, ApiClient
from milligpu.kube.connections import HttpConnections
from milligpu.manifests.rbac import SCHEDULER
from milligpu.manifests.webhook_configuration import PATH, WebhookAddress
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.policy import SharePolicy
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.wire.grant import encode_grant
from milligpu.wire.inventory import encode_inventory

GPUS = 8
# etcd takes up to 128 operations and 1.5 MiB in a transaction.
_AT_ONCE = 100
_CREATORS = 8
_PODS = "/api/v1/namespaces/default/pods"
# Reviews per second: a busy cluster creates some tens of pods per second.
_REVIEWS_PER_S = 100
_DEADLINE_S = 600.0


def node_object(name: str) -> dict[str, Any]:
    """A node that is Ready, with eight GPUs."""
    cards = (Gpu(f"GPU-{name}-{at}", "Tesla V100-SXM2-16GB", Mib(16384)) for at in range(GPUS))
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", names.VGPU: str(1000 * GPUS)}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {names.INVENTORY: encode_inventory(cards)}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _pod_object(name: str, *, share: bool) -> dict[str, Any]:
    """A pod as a Deployment makes it: an application, a sidecar, probes, settings and an owner."""
    app = "trainer" if share else "shop"
    limits = {"cpu": "500m", "memory": "512Mi"} | ({names.VGPU: "300"} if share else {})
    settings = [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(8)]
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10}
    main = {
        "name": "main",
        "image": f"registry.example/{app}/{app}:1.4.2",
        "env": settings,
        "ports": [{"containerPort": 8080, "name": "http"}],
        "resources": {"limits": limits, "requests": limits},
        "readinessProbe": probe,
        "livenessProbe": probe,
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/app"}],
    }
    sidecar = {
        "name": "proxy",
        "image": "registry.example/mesh/proxy:2.1",
        "args": ["--concurrency=2", "--drain=30s"],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
    }
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{app}-6d5f8c7b9", "uid": str(uuid.uuid4())}
    labels = {"app": app, "pod-template-hash": "6d5f8c7b9", "team": "research", "version": "1.4.2"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {"checksum/settings": "0" * 64, "prometheus.io/scrape": "true"},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "nodeName": "node-0",
            "schedulerName": "milligpu",
            "containers": [main, sidecar],
            "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
    }


def _running() -> dict[str, Any]:
    """The status that a kubelet writes for such a pod."""
    when = "2026-01-01T00:00:00Z"
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    image = "registry.example/image@sha256:" + "0" * 64
    containers = [
        {
            "name": name,
            "image": "registry.example/image:1",
            "imageID": image,
            "containerID": "containerd://" + "1" * 64,
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": when}},
        }
        for name in ("main", "proxy")
    ]
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": when} for kind in kinds],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "startTime": when,
        "containerStatuses": containers,
    }


class ExistingPods:
    """Writes running pods into a cluster's etcd."""

    def __init__(self, cluster: Cluster, api: ApiClient) -> None:
        self._api = api
        pki = cluster.control_plane.pki
        tls = ssl.create_default_context(cafile=str(pki.etcd.certificate))
        tls.load_cert_chain(pki.files.etcd_client.certificate, pki.files.etcd_client.key)
        self._version = 0
        """The revision of etcd after the last write."""
        self._etcd = HttpConnections("127.0.0.1", cluster.port("etcd"), tls, _CREATORS)

    async def create(self, nodes: int, plain: int, sharing: int) -> int:
        """Create pods spread over all nodes; return the size of one in the API server's JSON, in bytes."""
        templates = [await self._template(share=share) for share in (False, True)]
        sizes = [len(await self._api.get(f"{_PODS}/template-{name}")) for name in ("plain", "sharing")]
        made = iter(self._objects(templates[0], plain, nodes, "shop"))
        shared = iter(self._objects(templates[1], sharing, nodes, "trainer"))

        async def creator() -> None:
            for each in (made, shared):
                while batch := [found for _, found in zip(range(_AT_ONCE), each, strict=False)]:
                    await self._put(batch)

        await asyncio.gather(*(creator() for _ in range(_CREATORS)))
        while await self._cached_version() < self._version:
            await asyncio.sleep(0.5)
        return (sizes[0] * plain + sizes[1] * sharing) // (plain + sharing)

    async def _cached_version(self) -> int:
        """How far the API server's cache is; until it has all pods, its lists wait and fail."""
        path = f"{_PODS}?resourceVersion=0&fieldSelector=metadata.name%3Dtemplate-plain"
        return int(json.loads(await self._api.get(path, timeout_s=60))["metadata"]["resourceVersion"])

    async def _template(self, *, share: bool) -> dict[str, Any]:
        name = f"template-{'sharing' if share else 'plain'}"
        await self._api.send("POST", _PODS, _pod_object(name, share=share))
        await self._api.send("PATCH", f"{_PODS}/{name}/status", {"status": _running()}, kind=MERGE_PATCH)
        return json.loads(await self._api.get(f"{_PODS}/{name}"))

    @staticmethod
    def _objects(like: dict[str, Any], count: int, nodes: int, name: str) -> Iterator[tuple[str, bytes]]:
        pod = copy.deepcopy(like)
        del pod["metadata"]["resourceVersion"]
        sharing = name == "trainer"
        for number in range(count):
            node = f"node-{number % nodes}"
            full, uid = f"{name}-6d5f8c7b9-{number:05x}", str(uuid.uuid4())
            pod["metadata"] |= {"name": full, "uid": uid}
            pod["spec"]["nodeName"] = node
            if sharing:
                share = Share(Milli(300), Mib(4915), Milli(300))
                held = {"main": (GpuShare(f"GPU-{node}-{number // nodes % GPUS}", share),)}
                pod["metadata"]["annotations"][names.GRANT] = encode_grant(
                    Grant(uid, node, held, SharePolicy.FIXED)
                )
            yield f"/registry/pods/default/{full}", msgspec.json.encode(pod)

    async def _put(self, objects: list[tuple[str, bytes]]) -> None:
        puts = [
            {
                "requestPut": {
                    "key": base64.b64encode(key.encode()).decode(),
                    "value": base64.b64encode(text).decode(),
                }
            }
            for key, text in objects
        ]
        answer = await self._etcd.ask(_request("/v3/kv/txn", msgspec.json.encode({"success": puts})))
        if answer.status != 200:
            raise RuntimeError(f"etcd: {answer.status} {answer.body[:200]!r}")
        self._version = max(self._version, int(json.loads(answer.body)["header"]["revision"]))


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Reviews:
    """Sends the webhook reviews of new pods at a steady rate, and measures how long each answer takes."""

    def __init__(self, port: int) -> None:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self._connections = HttpConnections("127.0.0.1", port, tls, 64)
        pod = _pod_object("new", share=True)
        del pod["spec"]["nodeName"]
        kind = {"group": "", "version": "v1", "kind": "Pod"}
        review = {"uid": "1", "kind": kind, "namespace": "default", "operation": "CREATE", "object": pod}
        document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": review}
        self._request = _request(PATH, msgspec.json.encode(document))
        self.times: list[float] = []
        """Milliseconds."""

    async def run(self) -> None:
        """Send reviews until cancelled; one that waits does not hold up the next."""
        async with asyncio.TaskGroup() as tasks:
            due = time.monotonic()
            while True:
                tasks.create_task(self._review(due))
                due += 1 / _REVIEWS_PER_S
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _review(self, due: float) -> None:
        answer = await self._connections.ask(self._request)
        if answer.status != 200 or b'"allowed":true' not in answer.body:
            raise RuntimeError(f"the webhook: {answer.status} {answer.body[:200]!r}")
        self.times.append(1000 * (time.monotonic() - due))


def memory_mib(process: Process, field: str) -> int:
    """A process's memory, such as VmRSS now or VmHWM at its highest."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status)[1]) // 1024  # type: ignore[index]


def cpu_s(process: Process) -> float:
    """The CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _quantile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


async def _until_leading(service: SchedulerService) -> float:
    """Return when the instance answers that it leads, having listed the cluster."""
    connections = HttpConnections("127.0.0.1", service.port, None, 1)
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            with contextlib.suppress(OSError):
                answer = await connections.ask(b"GET /leading HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                if answer.status == 200:
                    return time.monotonic()
            await asyncio.sleep(0.02)


def _wait_for(url: str) -> None:
    def answers() -> bool:
        return httpx2.get(url, verify=False).status_code == 200

    until(url, answers, 60, retry=(httpx2.TransportError,))


async def measure_leader_change(nodes: int, existing: int, sharing: int, rounds: int) -> None:
    """Measure changes of the leader on a cluster of this size."""
    arguments = {"disable-admission-plugins": "TaintNodesByCondition"}
    with Cluster.start(f"bench-{os.getpid()}", apiserver_args=arguments) as cluster:
        until("the default account", lambda: bool(list_in(cluster.client, ServiceAccount, "default")), 60)
        cluster.control_plane.stop_scheduler(DEFAULT_SCHEDULER)
        cluster.control_plane.controller_manager.stop()
        async with ApiClient(config.find_cluster(str(cluster.kubeconfig))) as api:
            slots = asyncio.Semaphore(32)

            async def create(number: int) -> None:
                async with slots:
                    await api.send("POST", "/api/v1/nodes", node_object(f"node-{number}"), timeout_s=60)

            await asyncio.gather(*map(create, range(nodes)))
            size = await ExistingPods(cluster, api).create(nodes, existing - sharing, sharing)
        print(f"{nodes} nodes, {existing} pods of {size} bytes, {sharing} of them with shares", flush=True)
        await _measure(cluster, rounds)


async def _measure(cluster: Cluster, rounds: int) -> None:
    ports = [free_port() for _ in range(2)]
    install(cluster, webhook=WebhookAddress(NAMESPACE, url=f"https://127.0.0.1:{ports[0]}"))
    account = account_kubeconfig(cluster, SCHEDULER)
    services = [
        SchedulerService(
            cluster, f"service-{port}", "--namespace", NAMESPACE, "--webhook-port", str(port), kubeconfig=account
        )
        for port in ports
    ]
    services[0].start()
    await _until_leading(services[0])
    for _ in range(rounds):
        old, new = services
        new.start()
        _wait_for(f"{new.url}/readyz")
        await _change(cluster, old, new, ports[1])
        old.process.stop()
        services.reverse()
        ports.reverse()


async def _change(cluster: Cluster, old: SchedulerService, new: SchedulerService, port: int) -> None:
    reviews = Reviews(port)
    _wait_for(f"https://127.0.0.1:{port}/readyz")
    programs = [new.process, cluster.control_plane.apiserver, cluster.control_plane.etcd]
    sending = asyncio.create_task(reviews.run())
    await asyncio.sleep(3)
    calm = list(reviews.times)
    standby = memory_mib(new.process, "VmRSS")
    before = [cpu_s(each) for each in programs]
    reviews.times.clear()
    start = time.monotonic()
    os.kill(old.process.pid, signal.SIGTERM)
    end = await _until_leading(new)
    busy = list(reviews.times)
    spent = [cpu_s(each) - then for each, then in zip(programs, before, strict=True)]
    peak = memory_mib(new.process, "VmHWM")
    await asyncio.sleep(3)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    print(f"  ready {end - start:.1f} s after the old leader was told to stop")
    print(
        f"  reviews meanwhile: p50 {_quantile(busy, 0.5):.0f} ms, p99 {_quantile(busy, 0.99):.0f} ms, slowest"
        f" {max(busy):.0f} ms of {len(busy)}; before: p50 {_quantile(calm, 0.5):.0f} ms, p99"
        f" {_quantile(calm, 0.99):.0f} ms of {len(calm)}"
    )
    print(f"  memory: standby {standby} MiB, peak {peak} MiB, then {memory_mib(new.process, 'VmRSS')} MiB")
    print(
        "  CPU: " + ", ".join(f"{each.name} {s:.1f} s" for each, s in zip(programs, spent, strict=True)), flush=True
    )


if __name__ == "__main__":
    asyncio.run(measure_leader_change(5000, 100_000, 20_000, 1))
