"""The pods of an experiment, and what their logs say. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from milligpu.measure import network_program, tenant
from milligpu.model import names
from milligpu.model.units import WHOLE, Mib

_NODE_NAME = "metadata.name"


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """What each pod of a measurement runs, and what it has besides its part of the GPU."""

    arguments: Sequence[str]
    program: ModuleType = tenant
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    processes: int = 1
    mib: Mib | None = None
    """Memory instead of an equal part; then some of the pods may find no room."""
    cpu: float | None = None
    """CPUs that it may use at most."""
    bare: bool = False
    """Whether it has a whole GPU, which has no limits library."""
    node: str = ""
    """Where it must run."""

    @classmethod
    def hold(cls, mib: Mib) -> "TenantLoad":
        """Take all memory of the share."""
        return cls(["hold"], mib=mib)

    @classmethod
    def serve(
        cls,
        kernel_us: float,
        cpu_ms: float,
        *,
        processes: int = 1,
        cpu: float | None = None,
        bare: bool = False,
        node: str = "",
    ) -> "TenantLoad":
        """Answer as many requests at a time as there are processes."""
        arguments = ["serve", f"{kernel_us:.0f}", f"{cpu_ms:g}", str(processes)]
        return cls(arguments, processes=processes, cpu=cpu, bare=bare, node=node)

    @classmethod
    def network(cls, batch: int) -> "TenantLoad":
        """Make passes of the network, one after the other."""
        return cls([str(batch), "serve"], network_program, network_program.ENVIRONMENT)


def tenant_pod(name: str, image: str, load: TenantLoad, count: int, gpu_mib: Mib) -> dict[str, Any]:
    """Return one of `count` pods with equal parts of one GPU; their names differ after the last hyphen."""
    together, _, _ = name.rpartition("-")
    limits: dict[str, Any] = {names.WHOLE_GPU: 1}
    annotations: dict[str, str] = {}
    if not load.bare:
        # With its memory stated, a share of all compute has the limits library, too.
        limits = {names.VGPU: WHOLE // count, names.VGPU_MEMORY: load.mib or gpu_mib // count}
        annotations = {names.AFFINITY: together, names.EXCLUSION: together}
    if load.cpu is not None:
        limits["cpu"] = f"{round(1000 * load.cpu)}m"
    text = Path(str(load.program.__file__)).read_text(encoding="utf-8")
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-c", text, *load.arguments],
        "env": [{"name": key, "value": value} for key, value in load.environment.items()],
        "resources": {"limits": limits},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        # With 0 the API server forgets a pod before its containers have ended, and the next pod finds its GPU held.
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    if load.node:
        here = {"key": _NODE_NAME, "operator": "In", "values": [load.node]}
        terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }


def has_begun(log: str, processes: int) -> bool:
    """Whether all processes of a tenant have the GPU."""
    return sum(line.split()[1:2] in (["ready"], ["held"]) for line in log.splitlines()) >= processes


def answer_times(log: str, begin: float, end: float) -> list[float]:
    """Return the latencies in milliseconds of the requests that ended within this time, by the node's clock."""
    words = [line.split() for line in log.splitlines()]
    return [float(each[2]) for each in words if each[1:2] == ["answered"] and begin <= float(each[0]) < end]
