"""A scheduler service beside a test's cluster, nodes with GPUs, and what the grants in a cluster add up to."""

import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import httpx2
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from devcluster.api import list_in
from devcluster.cluster import Cluster
from devcluster.kwok import KwokNodes
from devcluster.pods import pod
from devcluster.process import Process
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.grant import Grant
from milligpu.model.units import Mib
from milligpu.scheduler.manifests import manifests
from milligpu.wire.grant import decode_grant
from milligpu.wire.inventory import encode_inventory

READY_DEADLINE_S = 60.0
CARD_MIB = Mib(16384)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class SchedulerService:
    """`milligpu scheduler serve` as a process of the cluster's; a test may kill, stop and start it."""

    def __init__(self, cluster: Cluster, name: str, *arguments: str, kubeconfig: Path | None = None) -> None:
        self.cluster = cluster
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [str(Path(sys.executable).with_name("milligpu")), "scheduler", "serve"]
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


def gpu_nodes(
    add: Callable[..., KwokNodes],
    count: int,
    cards: int = 2,
    *,
    options: Mapping[str, Any] | None = None,
    **card: Any,
) -> KwokNodes:
    """KWOK nodes, each with cards of its own; the kubelet's count of milli-GPU is there, too."""
    resources = {names.VGPU: str(cards * 1000), names.WHOLE_GPU: str(cards)}

    def annotations(node: str) -> dict[str, str]:
        return {names.INVENTORY: inventory(node, cards, **card)}

    return add(count, resources=resources, each=annotations, **(options or {}))


def inventory(node: str, cards: int, model: str = "Tesla V100-SXM2-16GB", mib: int = CARD_MIB, **card: Any) -> str:
    return encode_inventory(Gpu(f"GPU-{node}-{at}", model, Mib(mib), **card) for at in range(cards))


def share_pod(name: str, milli: int, nodes: KwokNodes | None = None, *, mib: int | None = None, **spec: Any) -> Pod:
    resources = {names.VGPU: str(milli)} | ({names.VGPU_MEMORY: str(mib)} if mib else {})
    if nodes is not None:
        spec = {"nodeSelector": dict(nodes.selector), "tolerations": list(nodes.tolerations), **spec}
    return pod(name, resources=resources, **spec)


def grant_of(found: Pod) -> Grant | None:
    notes: Mapping[str, str] = cast(Any, found.metadata).annotations or {}
    text = notes.get(names.GRANT)
    return None if text is None else decode_grant(text)


def grants(cluster: Cluster, namespace: str | None) -> dict[str, Grant]:
    """The grants of all pods that have not ended, by pod name."""
    found: dict[str, Grant] = {}
    for each in list_in(cluster.client, Pod, namespace):
        grant = grant_of(each)
        ended = each.status is not None and each.status.phase in {"Succeeded", "Failed"}
        if grant is not None and not ended:
            assert each.metadata is not None
            assert each.metadata.name is not None
            assert each.spec is not None
            assert (grant.uid, grant.node) == (each.metadata.uid, each.spec.nodeName)
            found[each.metadata.name] = grant
    return found


def overcommitted(given: Mapping[str, Grant] | Sequence[Grant], mib: int = CARD_MIB) -> list[str]:
    """Cards of which more was granted than there is; pods here have one container each."""
    milli: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for grant in given.values() if isinstance(given, Mapping) else given:
        for shares in grant.containers.values():
            for share in shares:
                milli[share.gpu] += 1000 if share.whole else share.milli
                memory[share.gpu] += mib if share.whole else share.mib
    return sorted({gpu for gpu in milli if milli[gpu] > 1000 or memory[gpu] > mib})


def install(cluster: Cluster, namespace: str = "milligpu") -> None:
    """Apply what `milligpu scheduler manifests` prints, and wait until the policies are in force."""
    text = yaml.safe_dump_all(manifests(namespace))
    cluster.kubectl("apply", "-f", "-", stdin=text)
    forged = pod("forged", annotations={names.GRANT: "{}"})

    def refused() -> bool:
        try:
            cluster.client.create(forged, namespace="default")
        except ApiError as error:
            return "may write" in str(error)
        cluster.client.delete(Pod, "forged", namespace="default")
        return False

    until("the policies to be in force", refused, 30)


def account_kubeconfig(cluster: Cluster, account: str, *bound: str, namespace: str = "milligpu") -> Path:
    """A kubeconfig with a service account's token; `bound` are further arguments of `kubectl create token`."""
    token = cluster.kubectl("create", "token", account, "-n", namespace, "--duration=2h", *bound).strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file = cluster.folder / f"{account}-{'-'.join(bound).replace('/', '_') or 'unbound'}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file
