"""milligpu itself on a cluster: the scheduler service, and on each real node software GPUs and the agent.

All run under the accounts and policies that a cluster of users would have.
"""

import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Node as KubeNode
from lightkube.resources.core_v1 import Pod

from devcluster import images
from devcluster.cluster import Cluster
from devcluster.controlplane import DEFAULT_SCHEDULER
from devcluster.node import Node
from devcluster.pods import pod
from devcluster.process import Process
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib, parse_quantity
from milligpu.scheduler.config import in_default_scheduler
from milligpu.scheduler.manifests import AGENT, SCHEDULER, manifests
from milligpu.scheduler.webhook_objects import Target
from milligpu.softgpu.start import Places, client_environment
from milligpu.wire.inventory import decode_inventory, encode_inventory

READY_DEADLINE_S = 60.0
NAMESPACE = "milligpu"
CARDS = Path("/run/milligpu/softgpu")
"""Where a node has its cards' sockets."""
# NVRTC 13 compiles for Ampere and later.
MODEL = "A100-40GB"
# Longer than anybody keeps a cluster that is for trying things.
_TOKEN_DURATION = "8760h"
_PROGRAM = Path(sys.executable).with_name("milligpu")


@dataclass
class Platform:
    """milligpu on a cluster; a test may kill, stop and start its parts."""

    cluster: Cluster
    service: "SchedulerService"
    nodes: "list[GpuNode]"

    def start_scheduler(self) -> None:
        """The default scheduler, which asks our service."""
        self.cluster.control_plane.start_scheduler(in_default_scheduler(self.service.url))

    def add(self, node: Node, *arguments: str, devices: int, model: str = MODEL) -> "GpuNode":
        """Give a real node cards and an agent, whose account is bound to it; `arguments` are the agent's."""
        bound = ("--bound-object-kind=Node", f"--bound-object-name={node.name}")
        kubeconfig = account_kubeconfig(self.cluster, AGENT, *bound)
        made = GpuNode(self.cluster, node, *arguments, devices=devices, model=model, kubeconfig=kubeconfig)
        self.nodes.append(made.start())
        return made


def install_platform(cluster: Cluster, *arguments: str, devices: int) -> Platform:
    """Bring a cluster to the point where pods that ask for a share run on one; `arguments` are the agents'."""
    webhook = free_port()
    install(cluster, webhook=Target(NAMESPACE, url=f"https://127.0.0.1:{webhook}"))
    kubeconfig = account_kubeconfig(cluster, SCHEDULER)
    # The only one: when it is started again it need not wait until its own lease ends.
    options = ("--namespace", NAMESPACE, "--webhook-port", str(webhook), "--identity", "the-only-one")
    service = SchedulerService(cluster, "milligpu-scheduler", *options, kubeconfig=kubeconfig)
    platform = Platform(cluster, service.start().wait_ready(), [])
    cluster.control_plane.stop_scheduler(DEFAULT_SCHEDULER)
    platform.start_scheduler()
    cluster.add_image(images.CUDA)
    for node in cluster.nodes:
        platform.add(node, *arguments, devices=devices)
    return platform


def imagined_cards(node: str) -> dict[str, str]:
    """The annotation of a KWOK node: eight GPUs that only the control plane believes in."""
    cards = (Gpu(f"GPU-{node}-{at}", "Tesla V100-SXM2-16GB", Mib(16384)) for at in range(8))
    return {names.INVENTORY: encode_inventory(cards)}


class SchedulerService:
    """`milligpu scheduler serve` as a process of the cluster's; a test may kill, stop and start it."""

    def __init__(self, cluster: Cluster, name: str, *arguments: str, kubeconfig: Path | None = None) -> None:
        self.cluster = cluster
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [str(_PROGRAM), "scheduler", "serve"]
        command += ["--kubeconfig", str(kubeconfig or cluster.kubeconfig), "--port", str(self.port)]
        command += ["--namespace", "default", *arguments]
        self.process: Process = cluster.new_process(name, command)

    def start(self) -> "SchedulerService":
        self.process.start()
        return self

    def wait_ready(self) -> "SchedulerService":
        def ready() -> bool:
            self.process.must_run()
            return httpx2.get(f"{self.url}/readyz", timeout=5).status_code == 200

        until("the scheduler service", ready, READY_DEADLINE_S, retry=(httpx2.TransportError,))
        return self

    def post(self, verb: str, body: object, timeout: float = 30) -> Any:
        return httpx2.post(f"{self.url}/{verb}", json=body, timeout=timeout).json()


class GpuNode:
    """The cards and the agent of one real node; a test may kill and start the agent."""

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
        self._fleet = (devices, model)
        self._start_cards()
        self.url = f"http://{node.address}:{free_port()}"
        self.kubeconfig = kubeconfig or cluster.kubeconfig
        self._agents = 0
        self.agent = self.beside(*arguments)

    def beside(self, *arguments: str) -> Process:
        """Another agent for this node, not started."""
        self._agents += 1
        name = "agent" if self._agents == 1 else f"agent-{self._agents}"
        command = [str(_PROGRAM), "agent", "--node", self.node.name, "--listen", self.url.removeprefix("http://")]
        command += ["--kubeconfig", str(self.kubeconfig), *arguments]
        return self.node.new_process(name, command, self.environment())

    def upgrade(self, *arguments: str) -> "GpuNode":
        """Start another agent beside the one that runs, and stop that when the new one has taken over."""
        self.url = f"http://{self.node.address}:{free_port()}"  # whoever answers there is the new one
        old, self.agent = self.agent, self.beside(*arguments)
        self.start()
        old.stop()
        return self

    def _start_cards(self) -> None:
        devices, model = self._fleet
        self.node.run_inside("mkdir", "-p", str(CARDS.parent))
        cache = Places.from_env({"HOME": str(Path.home())}).cache
        done = self.node.run_inside(
            *(sys.executable, "-m", "milligpu.softgpu.daemon", str(CARDS), "--cache", str(cache)),
            *("--model", model, "--devices", str(devices), "--watch", str(self.node.holder.pid)),
        )
        if done.returncode:
            raise RuntimeError(f"the software GPUs of {self.node.name} did not start: {done.stderr.strip()}")

    def environment(self) -> Mapping[str, str]:
        """What the agent, or any program on the node, finds the cards by."""
        return client_environment(CARDS, {})

    @property
    def cards(self) -> Path:
        """The cards' folder, from outside the node."""
        return self.node.folder / CARDS.relative_to("/")

    def start(self) -> "GpuNode":
        """Start the agent, and wait until the kubelet counts its shares."""
        self.agent.start()
        return self.wait_ready()

    def power_on(self) -> None:
        """Start a node that was powered off, with its cards and its agent."""
        self.node.power_on()
        self._start_cards()
        self.agent.start()

    def wait_ready(self) -> "GpuNode":
        """Wait until the kubelet counts its shares."""
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
        """What the agent serves there."""
        return httpx2.get(f"{self.url}/{path}", timeout=5).text

    def allocatable(self, resource: str) -> int:
        """How many slots the kubelet offers."""
        found = self._object()["status"].get("allocatable", {})
        return int(parse_quantity(resource, found.get(resource, "0")))

    def inventory(self) -> tuple[Gpu, ...]:
        """The cards as the node's annotation has them."""
        text: str | None = self._object()["metadata"].get("annotations", {}).get(names.INVENTORY)
        return decode_inventory(text) if text else ()

    def _object(self) -> dict[str, Any]:
        found: Any = self.cluster.client.get(KubeNode, self.node.name)
        return found.to_dict()


def install(cluster: Cluster, namespace: str = NAMESPACE, webhook: Target | None = None) -> None:
    """Apply what `milligpu scheduler manifests` prints, and wait until the policies are in force."""
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests(namespace, webhook)))
    forged = pod("forged", annotations={names.GRANT: "{}"})

    def refused() -> bool:
        try:
            # The webhook, which does not answer yet, has no say there.
            cluster.client.create(forged, namespace="kube-system")
        except ApiError as error:
            return "may write" in str(error)
        cluster.client.delete(Pod, "forged", namespace="kube-system")
        return False

    until("the policies to be in force", refused, 30)


def account_kubeconfig(cluster: Cluster, account: str, *bound: str, namespace: str = NAMESPACE) -> Path:
    """A kubeconfig with a service account's token; `bound` are further arguments of `kubectl create token`."""
    duration = f"--duration={_TOKEN_DURATION}"
    token = cluster.kubectl("create", "token", account, "-n", namespace, duration, *bound).strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file = cluster.folder / f"{account}-{'-'.join(bound).replace('/', '_') or 'unbound'}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
