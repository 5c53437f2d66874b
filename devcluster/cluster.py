"""A whole cluster: the control plane, real nodes and KWOK nodes put together.

with Cluster.start("mine", real_nodes=1) as cluster:
    cluster.client.list(Node)              # lightkube, as administrator
    cluster.kubectl("get", "nodes")
    cluster.add_kwok_nodes(100, resources={"nvidia.com/vgpu": "8000"})
    cluster.nodes[0].kubelet.kill()
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from lightkube import Client, KubeConfig
from lightkube.models.core_v1 import Taint
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import RoleRef, Subject
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding

from devcluster import build, diagnosis, images, kwok, network, tools
from devcluster.controlplane import ControlPlane
from devcluster.errors import DevclusterError
from devcluster.node import Node
from devcluster.pki import KUBELET_CLIENT, KWOK_USER
from devcluster.process import GARBAGE, Process
from devcluster.record import Clusters, Record
from devcluster.report import Report, to_nobody
from devcluster.wait import until

NODE_READY_DEADLINE_S = 60.0


def prepare(report: Report, *, real_nodes: bool, kwok_nodes: bool = False, nvidia_toolkit: bool = False) -> None:
    """Build what is not built yet; if everything is built, this takes milliseconds."""
    build.binaries(build.KUBE, report)
    if real_nodes:
        build.binaries(build.CONTAINERD, report)
        for image in images.IMAGES:
            images.archive(image, report)
    if kwok_nodes:
        build.binaries(build.TOOLS, report)
    if nvidia_toolkit:
        build.binaries(build.NVIDIA, report)


class Cluster:
    """A running cluster. Create one with `Cluster.start`; end it with `stop` or a `with` block."""

    def __init__(
        self,
        record: Record,
        clusters: Clusters,
        *,
        feature_gates: Mapping[str, bool],
        apiserver_args: Mapping[str, str],
        report: Report,
    ) -> None:
        self._record = record
        self._clusters = clusters
        self._report = report
        self._gates = dict(feature_gates)
        self._kube = build.binaries(build.KUBE, report)
        self._prefixes = itertools.count(1)
        self.control_plane = ControlPlane(
            record, self._kube, feature_gates=feature_gates, apiserver_args=apiserver_args
        )
        self.nodes: list[Node] = []
        self._clients: list[Client] = []
        self._programs: list[Process] = []
        self.kwok: Process | None = None
        self.api_forwarder = _api_forwarder(record)

    @classmethod
    def start(
        cls,
        name: str,
        *,
        real_nodes: int = 0,
        scheduler_config: Mapping[str, Any] | None = None,
        feature_gates: Mapping[str, bool] | None = None,
        apiserver_args: Mapping[str, str] | None = None,
        detached: bool = False,
        report: Report = to_nobody,
    ) -> "Cluster":
        """Start a cluster and return when its API server and nodes are ready.

        `scheduler_config` is a KubeSchedulerConfiguration without clientConnection. `feature_gates` apply to every
        component. A `detached` cluster outlives this process once it is ready.
        """
        tools.check(real_nodes=real_nodes > 0)
        prepare(report, real_nodes=real_nodes > 0)
        clusters = Clusters.of_this_machine()
        record = clusters.claim(name)
        try:
            cluster = cls(
                record,
                clusters,
                feature_gates=feature_gates or {},
                apiserver_args=apiserver_args or {},
                report=report,
            )
            cluster._start(real_nodes, scheduler_config)
            if detached:
                record.detach()
        except BaseException:
            clusters.remove(record)
            raise
        return cluster

    def _start(self, real_nodes: int, scheduler_config: Mapping[str, Any] | None) -> None:
        self._record.cgroup.create()
        self._record.add_routes()
        self.control_plane.start_store()
        names = [f"{self.name}-node-{ordinal}" for ordinal in range(1, real_nodes + 1)]
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            runtimes = [pool.submit(self._start_runtime, self._new_node(name, {})) for name in names]
            self.control_plane.wait_ready()
            self._report("API server is ready")
            self.control_plane.controller_manager.start()
            self.control_plane.start_scheduler(scheduler_config)
            self._record.add_address(self._record.plan.api_service)
            self.api_forwarder.start()
            self._allow(KUBELET_CLIENT, "system:kubelet-api-admin")
            self._start_kubelets(runtimes)

    def _start_kubelets(self, runtimes: "list[Future[Node]]") -> None:
        nodes = [runtime.result() for runtime in runtimes]
        for node in nodes:
            node.kubelet.start()
        for node in nodes:
            self._wait_node_ready(node)

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def folder(self) -> Path:
        """The cluster's files: kubeconfigs, logs and the nodes' directories."""
        return self._record.folder

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.control_plane.pki.admin

    def port(self, purpose: str) -> int:
        """The port on 127.0.0.1 of a control plane component, given by name."""
        return self._record.port(purpose)

    @property
    def components(self) -> tuple[Process, ...]:
        """Every program of the cluster."""
        optional = [self.kwok] if self.kwok else []
        on_nodes = itertools.chain.from_iterable(node.components for node in self.nodes)
        return (*self.control_plane.components, self.api_forwarder, *on_nodes, *optional, *self._programs)

    @cached_property
    def client(self) -> Client:
        """The administrator's API client."""
        return self.client_of(self.kubeconfig)

    def client_of(self, kubeconfig: Path) -> Client:
        """An API client for another user; see `control_plane.pki.kubeconfig`. `stop` closes it."""
        client = Client(config=KubeConfig.from_file(str(kubeconfig)), trust_env=False)
        self._clients.append(client)
        return client

    def kubectl(self, *arguments: str, check: bool = True, stdin: str = "") -> str:
        """Run kubectl as administrator and return its output; raise if it fails."""
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.kubeconfig),
            **GARBAGE,
        }
        done = subprocess.run(
            [str(self._kube / "kubectl"), *arguments],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise DevclusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def add_node(
        self,
        name: str = "",
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Taint] = (),
        archives: Sequence[Path] = (),
    ) -> Node:
        """Add a real node and wait until it is Ready and has the local images.

        It registers with the taints. `archives` are images that it has from the start, too.
        """
        tools.check(real_nodes=True)
        prepare(self._report, real_nodes=True)
        name = name or f"{self.name}-node-{len(self._record.nodes) + 1}"
        node = self._start_runtime(self._new_node(name, labels or {}, taints))
        for archive in archives:
            node.import_image(archive, images.BASE)
        node.kubelet.start()
        self._wait_node_ready(node)
        return node

    def remove_node(self, node: Node) -> None:
        """Switch a node off and delete its Node object."""
        node.power_off()
        self.nodes.remove(node)
        self.kubectl("delete", "node", node.name, "--ignore-not-found")

    def add_image(self, image: images.Image) -> None:
        """Import an image that only some tests need into all real nodes."""
        for node in self.nodes:
            node.import_image(images.archive(image, self._report), image)

    def tag_image(self, image: images.Image, *references: str) -> None:
        """Give an image that all real nodes have other names as well."""
        for node in self.nodes:
            node.tag_image(image, *references)

    def _new_node(self, name: str, labels: Mapping[str, str], taints: Sequence[Taint] = ()) -> Node:
        self._record.add_node(name)
        node = Node(
            self._record,
            self.control_plane.pki,
            name,
            kube=self._kube,
            containerd=build.binaries(build.CONTAINERD, self._report),
            labels=labels,
            feature_gates=self._gates,
            taints=taints,
        )
        self.nodes.append(node)
        return node

    def _start_runtime(self, node: Node) -> Node:
        node.start_runtime()
        for image in images.IMAGES:
            node.import_image(images.archive(image, self._report), image)
        self._report(f"containerd of {node.name} is ready and has the images")
        return node

    def _wait_node_ready(self, node: Node) -> None:
        def ready() -> bool:
            node.kubelet.must_run()
            return kwok.readiness(self.client).get(node.name, False)

        until(
            f"node {node.name} to be Ready",
            ready,
            NODE_READY_DEADLINE_S,
            last_state=lambda: node.kubelet.tail(20),
        )
        self._report(f"node {node.name} is Ready")

    def add_kwok_nodes(
        self,
        count: int,
        *,
        resources: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        each: Callable[[str], Mapping[str, str]] = lambda _name: {},
        taints: tuple[Taint, ...] = (kwok.TAINT,),
        prefix: str = "",
    ) -> kwok.KwokNodes:
        """Add nodes without a kubelet, each with `resources` in addition to cpu, memory and pods.

        By default they are tainted, so that no pod that needs a container is scheduled there by accident. The
        result has the tolerations and a selector for exactly these nodes. `each` returns further annotations for
        a node, given its name.
        """
        if self.kwok is None:
            self._allow(KWOK_USER, KWOK_USER, rules=kwok.RULES)
            self.kwok = kwok.controller(
                self._record, self.control_plane.pki, build.binaries(build.TOOLS, self._report)
            )
            self.kwok.start()
        prefix = prefix or f"kwok-{next(self._prefixes)}"
        selector = {"milligpu.dev/devcluster-nodes": prefix}
        names = tuple(f"{prefix}-{ordinal}" for ordinal in range(count))
        kwok.create_nodes(
            self.client,
            self.kwok,
            names,
            resources=resources or {},
            labels={**selector, **(labels or {})},
            annotations=lambda name: {**(annotations or {}), **each(name)},
            taints=taints,
        )
        tolerations = (kwok.TOLERATION,) if taints else ()
        return kwok.KwokNodes(names, selector, tolerations)

    def remove_kwok_nodes(self, nodes: kwok.KwokNodes) -> None:
        kwok.delete_nodes(self.client, nodes.names)

    def start_scheduler(
        self, config: Mapping[str, Any], name: str, feature_gates: Mapping[str, bool] | None = None
    ) -> Process:
        """Start another scheduler on this control plane, for pods that name it; cheaper than a cluster.

        `name` becomes the schedulerName of profiles in the configuration that have none.
        """
        given: list[dict[str, Any]] = config.get("profiles") or [{}]
        profiles = [{"schedulerName": name, **profile} for profile in given]
        return self.control_plane.start_scheduler({**config, "profiles": profiles}, name, feature_gates)

    def start_services(self) -> None:
        """Make Services reachable at their addresses, from pods and from the API server."""
        network.route_here(self._record.plan.service_range)
        # As a program of its own: a test that stops must not leave connections in this process.
        command = [sys.executable, "-m", "devcluster.services", str(self.kubeconfig)]
        self.new_process("services", command).start()

    def helm(self, *arguments: str) -> str:
        """Run helm on this cluster and return what it prints."""
        program = build.binaries(build.TOOLS, self._report) / "helm"
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "HELM_CACHE_HOME": str(self.folder / "helm"),
        }
        done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DevclusterError(
                f"helm {' '.join(arguments)} failed:\n{done.stderr.strip()}\n{done.stdout.strip()}"
            )
        return done.stdout

    def new_process(self, name: str, command: Sequence[str]) -> Process:
        """Prepare a test's own program next to the cluster: it gets a log, and ends with the cluster."""
        process = Process(
            name, command, cgroup=self._record.cgroup, log=self._record.folder / "logs" / f"{name}.log"
        )
        self._programs.append(process)
        return process

    def _allow(self, user: str, role: str, rules: "list[Any] | None" = None) -> None:
        """Bind a user to a cluster role; if `rules` are given, create the role first."""
        if rules is not None:
            self.client.create(ClusterRole(metadata=ObjectMeta(name=role), rules=rules))
        binding = ClusterRoleBinding(
            metadata=ObjectMeta(name=f"devcluster:{user}"),
            roleRef=RoleRef(apiGroup="rbac.authorization.k8s.io", kind="ClusterRole", name=role),
            subjects=[Subject(kind="User", name=user, apiGroup="rbac.authorization.k8s.io")],
        )
        self.client.create(binding)

    def last_state(self, namespace: str | None = None) -> str:
        """Pods, events and the ends of the components' logs, to diagnose a failed test."""
        return diagnosis.last_state(self.client, self.components, namespace)

    def stop(self) -> None:
        """Remove every trace of the cluster."""
        for client in self._clients:
            client.close()
        self._clusters.remove(self._record)
        for component in (*self.components, *(node.holder for node in self.nodes)):
            component.reap()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _api_forwarder(record: Record) -> Process:
    """Listens at the service's port and at the port of the endpoint that the API server publishes."""
    address, port = record.plan.api_service, record.port("apiserver")
    arguments = [f"127.0.0.1:{port}", f"{address}:443", f"{address}:{port}"]
    return Process(
        "api-forwarder",
        [sys.executable, str(Path(__file__).with_name("forward.py")), *arguments],
        cgroup=record.cgroup,
        log=record.folder / "logs" / "api-forwarder.log",
    )
