"""milligpu on a cluster: the scheduler service, and on each real node software GPUs and the agent.

All run with the service accounts and admission policies of a production cluster.
"""

import random
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Node as KubeNode
from lightkube.resources.core_v1 import Pod

from devcluster import images, network
from devcluster.cluster import Cluster
from devcluster.controlplane import DEFAULT_SCHEDULER
from devcluster.node import Node
from devcluster.pods import pod
from devcluster.process import Process
from devcluster.wait import until
from milligpu.manifests.bundle import cluster_manifests
from milligpu.manifests.kube_scheduler import in_default_scheduler
from milligpu.manifests.rbac import AGENT, SCHEDULER
from milligpu.manifests.webhook_configuration import WebhookAddress
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib, parse_quantity
from milligpu.softgpu.start import SoftgpuPaths, client_environment
from milligpu.wire.driver import gpus_of_node
from milligpu.wire.inventory import encode_inventory

READY_DEADLINE_S = 60.0
NAMESPACE = "milligpu"
SOFTGPU_FOLDER = Path("/run/milligpu/softgpu")
"""The directory of the software GPUs' sockets on a node."""
# NVRTC 13 compiles for Ampere and later.
MODEL = "A100-40GB"
# Longer than a cluster for trying things out is kept.
_TOKEN_DURATION = "8760h"
PROGRAM = Path(sys.executable).with_name("milligpu")
"""Today's `milligpu`."""


@dataclass
class Platform:
    """milligpu on a cluster; a test may kill, stop and start its components."""

    cluster: Cluster
    service: "SchedulerService"
    nodes: "list[GpuNode]"

    def start_scheduler(self) -> None:
        """Start the default scheduler with our service as its extender."""
        self.cluster.control_plane.start_scheduler(in_default_scheduler(self.service.url))

    def add(self, node: Node, *arguments: str, devices: int, model: str = MODEL) -> "GpuNode":
        """Add software GPUs and an agent to a real node; `arguments` are passed to the agent."""
        bound = ("--bound-object-kind=Node", f"--bound-object-name={node.name}")
        kubeconfig = account_kubeconfig(self.cluster, AGENT, *bound)
        made = GpuNode(self.cluster, node, *arguments, devices=devices, model=model, kubeconfig=kubeconfig)
        self.nodes.append(made.start())
        return made


def install_platform(cluster: Cluster, *arguments: str, devices: int, client_image: str = "") -> Platform:
    """Install everything that a pod needs to run on a share; `arguments` are passed to the agents.

    `client_image` has the client of GPU servers; nodes do not have it yet.
    """
    webhook = free_port()
    install(cluster, webhook=WebhookAddress(NAMESPACE, url=f"https://127.0.0.1:{webhook}"))
    kubeconfig = account_kubeconfig(cluster, SCHEDULER)
    # With a fixed identity, a restarted service need not wait until its own leader Lease expires.
    options = ("--namespace", NAMESPACE, "--webhook-port", str(webhook), "--identity", "the-only-one")
    options += ("--client-image", client_image) if client_image else ()
    service = SchedulerService(cluster, "milligpu-scheduler", *options, kubeconfig=kubeconfig)
    platform = Platform(cluster, service.start().wait_ready(), [])
    cluster.control_plane.stop_scheduler(DEFAULT_SCHEDULER)
    platform.start_scheduler()
    cluster.add_image(images.CUDA)
    for node in cluster.nodes:
        platform.add(node, *arguments, devices=devices)
    return platform


def kwok_inventory(node: str) -> dict[str, str]:
    """The inventory annotation of a KWOK node: eight GPUs that exist only in the API."""
    gpus = (Gpu(f"GPU-{node}-{at}", "Tesla V100-SXM2-16GB", Mib(16384)) for at in range(8))
    return {names.INVENTORY: encode_inventory(gpus)}


class SchedulerService:
    """`milligpu scheduler serve` as a process of the cluster; a test may kill, stop and start it."""

    def __init__(self, cluster: Cluster, name: str, *arguments: str, kubeconfig: Path | None = None) -> None:
        self.cluster = cluster
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [str(PROGRAM), "scheduler", "serve"]
        command += ["--kubeconfig", str(kubeconfig or cluster.kubeconfig), "--port", str(self.port)]
        self._command = [*command, "--namespace", "default", *arguments]
        options = dict(pairwise(arguments))
        self._webhook_port = options.get("--webhook-port")
        self._name = name
        self.process: Process = cluster.new_process(name, self._command)
        self._replaced = 0

    def start(self) -> "SchedulerService":
        self.process.start()
        return self

    def wait_ready(self) -> "SchedulerService":
        def ready() -> bool:
            self.process.must_run()
            if self._webhook_port is not None:
                # It listens once the API server trusts its certificate. 0.1.0 has no such page; any answer will do.
                httpx2.get(f"https://127.0.0.1:{self._webhook_port}/readyz", timeout=5, verify=False)
            status = httpx2.get(f"{self.url}/leading", timeout=5).status_code
            # 0.1.0 has no such page: there only the leader is ready.
            return status == 200 or (
                status == 404 and httpx2.get(f"{self.url}/readyz", timeout=5).status_code == 200
            )

        until("the scheduler service", ready, READY_DEADLINE_S, retry=(httpx2.TransportError,))
        return self

    def replace(self, program: Path = PROGRAM) -> "SchedulerService":
        """Stop the service and start it again with another version's program."""
        self.process.stop()
        self._replaced += 1
        name = f"{self._name}-{self._replaced}"
        self.process = self.cluster.new_process(name, [str(program), *self._command[1:]])
        return self.start().wait_ready()

    def post(self, verb: str, body: object, timeout: float = 30) -> Any:
        return httpx2.post(f"{self.url}/{verb}", json=body, timeout=timeout).json()


class GpuNode:
    """The software GPUs and the agent of one real node; a test may kill and start the agent."""

    def __init__(
        self,
        cluster: Cluster,
        node: Node,
        *arguments: str,
        devices: int = 2,
        model: str = MODEL,
        kubeconfig: Path | None = None,
    ) -> None:
        self.cluster = cluster
        self.node = node
        self._spec = (devices, model)
        self._start_gpus()
        self.url = f"http://{node.address}:{free_port()}"
        self.kubeconfig = kubeconfig or cluster.kubeconfig
        self._agents = 0
        self.agent = self.new_agent(*arguments)

    def new_agent(self, *arguments: str, program: Path = PROGRAM) -> Process:
        """Prepare another agent for this node, without starting it."""
        self._agents += 1
        name = "agent" if self._agents == 1 else f"agent-{self._agents}"
        command = [str(program), "agent", "--node", self.node.name, "--listen", self.url.removeprefix("http://")]
        command += ["--kubeconfig", str(self.kubeconfig), *arguments]
        return self.node.new_process(name, command, self.environment())

    def upgrade(self, *arguments: str, program: Path = PROGRAM) -> "GpuNode":
        """Start a new agent next to the running one, and stop the old one when the new one has taken over.

        `program` may be another version's.
        """
        self.url = f"http://{self.node.address}:{free_port()}"  # only the new agent listens there
        old, self.agent = self.agent, self.new_agent(*arguments, program=program)
        self.start()
        old.stop()
        return self

    def restart(self) -> "GpuNode":
        """Stop the agent, then start another one: unlike in an upgrade, the kubelet never knows two at once."""
        self.agent.stop()
        self.agent = self.new_agent()
        return self.start()

    def _start_gpus(self) -> None:
        devices, model = self._spec
        self.node.run_inside("mkdir", "-p", str(SOFTGPU_FOLDER.parent))
        cache = SoftgpuPaths.from_env({"HOME": str(Path.home())}).cache
        done = self.node.run_inside(
            *(sys.executable, "-m", "milligpu.softgpu.daemon", str(SOFTGPU_FOLDER), "--cache", str(cache)),
            *("--model", model, "--devices", str(devices), "--watch", str(self.node.holder.pid)),
        )
        if done.returncode:
            raise RuntimeError(f"the software GPUs of {self.node.name} did not start: {done.stderr.strip()}")

    def environment(self) -> Mapping[str, str]:
        """The variables with which a program on the node, such as the agent, finds the GPUs."""
        return client_environment(SOFTGPU_FOLDER, {})

    @property
    def softgpu_folder(self) -> Path:
        """The directory of the GPUs' sockets, from outside the node."""
        return self.node.folder / SOFTGPU_FOLDER.relative_to("/")

    def start(self) -> "GpuNode":
        """Start the agent and wait until the kubelet reports its device slots."""
        self.agent.start()
        return self.wait_ready()

    def power_on(self) -> None:
        """Start a node that was powered off, with its GPUs and its agent."""
        self.node.power_on()
        self._start_gpus()
        self.agent.start()

    def wait_ready(self) -> "GpuNode":
        """Wait until the kubelet reports the agent's device slots."""
        until(
            f"{self.node.name} to have shares",
            self._is_ready,
            READY_DEADLINE_S,
            last_state=lambda: self.agent.tail(20),
            retry=(httpx2.TransportError,),
        )
        return self

    def _is_ready(self) -> bool:
        self.agent.must_run()
        registered = httpx2.get(f"{self.url}/readyz", timeout=5).status_code == 200
        return registered and self.allocatable(names.VGPU) > 0 and bool(self.inventory())

    def page(self, path: str) -> str:
        """Fetch a page of the agent's HTTP server."""
        return httpx2.get(f"{self.url}/{path}", timeout=5).text

    def allocatable(self, resource: str) -> int:
        """The number of device slots that the kubelet reports."""
        found = self._object()["status"].get("allocatable", {})
        return int(parse_quantity(resource, found.get(resource, "0")))

    def inventory(self) -> tuple[Gpu, ...]:
        """The GPUs in the node's annotations, with the driver's versions."""
        return gpus_of_node(self._object()["metadata"].get("annotations", {}))

    def _object(self) -> dict[str, Any]:
        found: Any = self.cluster.client.get(KubeNode, self.node.name)
        return found.to_dict()


def install(
    cluster: Cluster, namespace: str = NAMESPACE, webhook: WebhookAddress | None = None, *, mutating: bool = True
) -> None:
    """Apply what `milligpu manifests --no-workloads` prints, and wait until the admission policies are in force.

    Without `mutating` as on a Kubernetes before 1.36.
    """
    objects = cluster_manifests(namespace, webhook, mutating=mutating)
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    forged = pod("forged", annotations={names.GRANT: "{}"})

    def refused() -> bool:
        try:
            # The webhook, which does not run yet, is not called for this namespace.
            cluster.client.create(forged, namespace="kube-system")
        except ApiError as error:
            return "may write" in str(error)
        with suppress(ApiError):  # it may be gone already, if the client had to send this twice
            cluster.client.delete(Pod, "forged", namespace="kube-system", grace_period=0)
        return False

    until("the policies to be in force", refused, 30)


def account_kubeconfig(cluster: Cluster, account: str, *bound: str, namespace: str = NAMESPACE) -> Path:
    """Write a kubeconfig with a service account's token; `bound` are arguments of `kubectl create token`."""
    duration = f"--duration={_TOKEN_DURATION}"
    token = cluster.kubectl("create", "token", account, "-n", namespace, duration, *bound).strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file = cluster.folder / f"{account}-{'-'.join(bound).replace('/', '_') or 'unbound'}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


def free_port() -> int:
    """Return a port that is free at the moment.

    Below the ports of clusters and those that Linux gives to connections: between this look and the start of the
    program that is to listen there, any connection on the machine could take one of the latter.
    """
    while True:
        port = random.randrange(10000, network.FIRST_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
