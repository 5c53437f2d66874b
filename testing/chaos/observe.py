"""Read the state of a cluster from four sources: API server, agent, containers and scheduler service.

The containers' state comes from the kernel: the mounts of their processes, and the limits page that they read.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
from lightkube import Client
from lightkube.resources.core_v1 import Pod

from devcluster.api import list_in
from devcluster.platform import GpuNode, SchedulerService
from milligpu.agent.pod_processes import pod_uid_in_cgroup
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.grant import Grant
from milligpu.wire.grant import decode_grant
from milligpu.wire.limits import decode_limits

_TENANT = "/run/milligpu/tenant"
_GPU_SOCKET = "/run/milligpu/softgpu/gpu"
# A page that the agent is writing can be read at the next attempt.
_READ_TRIES = 3


LimitsLine = tuple[str, int, int]
"""GPU, milli and MiB."""
End = tuple[str, int, str]
"""How a container ended: reason, exit code and message."""


@dataclass(frozen=True, slots=True)
class ApiPod:
    """A pod in the API server."""

    name: str
    uid: str
    phase: str
    node: str = ""
    reason: str = ""
    message: str = ""
    grant: Grant | None = None
    running: bool = False
    """Whether its container runs."""
    ends: tuple[End, ...] = ()
    """How its container ended, now and last time."""
    waiting: str = ""
    """The reason why its container waits."""


@dataclass(frozen=True, slots=True)
class AttachmentRecord:
    """The agent's record of one attachment."""

    uid: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class ProcessGpus:
    """What a process in a container really has."""

    uid: str
    gpus: frozenset[int]
    tenant: str
    """The name of its tenant directory; empty with whole GPUs."""
    lost: bool
    """Whether its tenant directory was removed."""
    shares: tuple[LimitsLine, ...]
    """The contents of its limits page."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of the node."""

    attachments: Mapping[str, AttachmentRecord] = field(default_factory=dict[str, AttachmentRecord])
    files: frozenset[str] = frozenset()
    allocations: frozenset[str] = frozenset()
    processes: frozenset[ProcessGpus] = frozenset()


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the cluster, from all four sources."""

    pods: tuple[ApiPod, ...]
    node: NodeState
    stages: Mapping[str, int]


def read_pods(client: Client, namespace: str) -> tuple[ApiPod, ...]:
    """Read all pods in one request, so that the result is consistent."""
    return tuple(_read_pod(each) for each in list_in(client, Pod, namespace))


def _read_pod(pod: Pod) -> ApiPod:
    assert pod.metadata is not None
    assert pod.spec is not None
    assert pod.status is not None
    notes: Mapping[str, str] = cast(Any, pod.metadata).annotations or {}
    text = notes.get(names.GRANT)
    states = [each for status in pod.status.containerStatuses or [] for each in (status.state, status.lastState)]
    ended = [each.terminated for each in states if each and each.terminated]
    ends = tuple((each.reason or "", each.exitCode, each.message or "") for each in ended)
    now = states[0] if states else None
    return ApiPod(
        name=pod.metadata.name or "",
        uid=pod.metadata.uid or "",
        phase=pod.status.phase or "",
        node=pod.spec.nodeName or "",
        reason=pod.status.reason or "",
        message=pod.status.message or "",
        grant=decode_grant(text) if text else None,
        running=bool(now and now.running),
        ends=ends,
        waiting=(now.waiting.reason or "") if now and now.waiting else "",
    )


def stages(service: SchedulerService) -> dict[str, int]:
    """Read how many pods the scheduler service counts in each stage."""
    text = httpx2.get(f"{service.url}/metrics", timeout=5).text
    lines = [line for line in text.splitlines() if line.startswith("milligpu_scheduler_pods{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


def read_node(node: GpuNode) -> NodeState:
    """Read the agent's records and what the containers' processes have."""
    folder = node.node.folder
    cdi = (each.name for each in _listed(node.node.cdi_dir) if each.suffix == ".json")
    return NodeState(
        attachments=dict(_read_attachments(folder / "run/milligpu/containers")),
        files=frozenset(name.removeprefix("milligpu-").removesuffix(".json") for name in cdi),
        allocations=frozenset(each.stem for each in _listed(folder / "var/lib/milligpu/promised")),
        processes=frozenset(_read_processes(node.node.pod_cgroups)),
    )


def is_stranded(node: GpuNode, uid: str) -> bool:
    """Whether the runtime has a container of the pod that never started, and no sandbox to start it in."""
    of_pod = f'labels."io.kubernetes.pod.uid"=={uid}'
    kind = 'labels."io.cri-containerd.kind"'
    made, sandboxes, running = (
        node.node.ctr("--namespace=k8s.io", *words)
        for words in (
            ("containers", "list", "--quiet", f"{of_pod},{kind}==container"),
            ("containers", "list", "--quiet", f"{of_pod},{kind}==sandbox"),
            ("tasks", "list", "--quiet"),
        )
    )
    if any(answer.returncode for answer in (made, sandboxes, running)):
        return False  # the runtime does not run
    alive = {*running.stdout.split()}
    return bool(made.stdout.split()) and not alive & {*made.stdout.split(), *sandboxes.stdout.split()}


def common(a: NodeState, b: NodeState) -> NodeState:
    """What both states have, and so did the time between them: no name is ever used twice."""
    return NodeState(
        {name: record for name, record in a.attachments.items() if name in b.attachments},
        a.files & b.files,
        a.allocations & b.allocations,
        a.processes & b.processes,
    )


def _listed(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return list(folder.iterdir())
    return []


def _read_attachments(folder: Path) -> Iterator[tuple[str, AttachmentRecord]]:
    for entry in _listed(folder):
        # While the agent creates or removes an attachment, it has a hidden name or disappears.
        with suppress(OSError):
            if not entry.name.startswith("."):
                raw: dict[str, Any] = json.loads((entry / "attachment.json").read_text())
                yield entry.name, AttachmentRecord(raw["uid"], decode_grant(raw["grant"]))


def _shares(file: Path) -> tuple[LimitsLine, ...]:
    """Read a limits page; empty if it cannot be read, which then differs from every grant."""
    for _ in range(_READ_TRIES):
        try:
            page = decode_limits(file.read_bytes())
        except (OSError, BadFormat):
            continue
        return tuple((each.uuid, int(each.milli), each.memory_cap >> 20) for each in page.gpus)
    return ()


def _read_processes(cgroups: Path) -> Iterator[ProcessGpus]:
    for folder, _, _ in os.walk(cgroups):
        uid = pod_uid_in_cgroup(folder.encode())
        if uid is not None:
            with suppress(OSError):
                for pid in (Path(folder) / "cgroup.procs").read_text().split():
                    yield from _read_process(uid, Path("/proc", pid))


def _read_process(uid: str, process: Path) -> Iterator[ProcessGpus]:
    with suppress(OSError):
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
        sources = {fields[4]: fields[3] for fields in mounts}
        gpus = frozenset(
            int(inside.removeprefix(_GPU_SOCKET).removesuffix(".sock"))
            for inside in sources
            if inside.startswith(_GPU_SOCKET)
        )
        if not gpus:
            return  # the pod's sandbox
        source = sources.get(_TENANT, "")
        lost = source.endswith("//deleted")
        shares = _shares(process / "root" / _TENANT[1:] / "limits") if source else ()
        name = Path(source.removesuffix("//deleted")).parent.name.removeprefix(".") if source else ""
        yield ProcessGpus(uid, gpus, name, lost, shares)
