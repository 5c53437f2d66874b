"""The status of a cluster: what was granted, what agents measured of it, and which pods wait."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from urllib.request import urlopen

import msgspec

from milligpu.cluster.agent_address import agent_address
from milligpu.cluster.explain import describe_unreadable, explain_waiting
from milligpu.cluster.state import ClusterState
from milligpu.kube import config, fetch
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.grant import GpuShare
from milligpu.model.units import BYTES_PER_MIB
from milligpu.status.calendars import read_calendars
from milligpu.status.data import plain
from milligpu.status.queue_values import ClusterQueues
from milligpu.status.queues import may_read_overview
from milligpu.status.state import state_of
from milligpu.wire.kubernetes import KubeNode
from milligpu.wire.status import (
    AcceleratorStats,
    GpuStatus,
    MachineStatus,
    ProcessUsage,
    ShareUsage,
    Violation,
    decode_status,
    gpu_utilization,
)

# A node whose agent does not answer is shown without measurements.
_TIMEOUT_S = 2.0
_AT_ONCE = 32
# Each explanation is computed; `milligpu free` says more about a cluster with more waiting pods.
_EXPLAINED = 50

_Place = tuple[str, str, str, str]
"""Namespace, pod, container and GPU."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that asks for a share and holds none."""

    namespace: str
    pod: str
    message: str
    """Why it waits; empty when too many wait to explain each."""
    queue: str = ""
    """The queue in which it waits for its turn, where queues were asked for."""
    turn: int | None = None
    """Its position in that queue, from 1."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster at one moment."""

    gpus: Sequence[GpuStatus]
    shares: Sequence[ShareUsage]
    waiting: Sequence[WaitingPod]
    processes: Sequence[ProcessUsage] = ()
    violations: Sequence[Violation] = ()
    """Those that the agents' audits find now."""
    problems: Sequence[str] = ()
    """What a reader must know to understand the numbers, one sentence each."""
    queues: ClusterQueues = field(default_factory=ClusterQueues)

    def as_data(self) -> dict[str, object]:
        """Turn it into plain data."""
        waiting = [{"namespace": each.namespace, "pod": each.pod, "message": each.message} for each in self.waiting]
        found: dict[str, object] = {"gpus": plain(list(self.gpus)), "shares": plain(list(self.shares))}
        found |= {"waiting": waiting, "processes": plain(list(self.processes))}
        return found | {"problems": list(self.problems)}


def read_cluster_status(
    kubeconfig: str | None, namespace: str | None = None, *, with_queues: bool = False
) -> ClusterStatus:
    """Ask the API server and the agents; `namespace` restricts the pods, not the GPUs."""
    found = config.find_cluster(kubeconfig)
    with config.blocking_client(found) as client:
        nodes = fetch.list_nodes(client)
        state = state_of(client, nodes, fetch.list_pods(client))
        overview = may_read_overview(client, state) if with_queues else None
        calendars = read_calendars(client) if with_queues else ()
    machines, silent = _machines(nodes)
    shares = _containers(state, machines) + _sessions(machines)
    turns = overview.turns() if overview is not None else {}
    waiting = [
        WaitingPod(
            entry.spec.pod.namespace,
            entry.spec.pod.name,
            turn.message if turn else explain_waiting(state, entry.spec) if at < _EXPLAINED else "",
            entry.spec.queue if overview is not None else "",
            turn.position if turn else None,
        )
        for at, entry in enumerate(state.waiting())
        for turn in (turns.get(entry.spec.pod.uid),)
        if namespace in {None, entry.spec.pod.namespace}
    ]
    shown = [each for each in shares if namespace in {None, each.namespace}]
    problems = _silent(state, silent) + [describe_unreadable(entry) for entry in state.unreadable_grants()]
    violations = [each for machine in machines.values() for each in machine.violations]
    return ClusterStatus(
        _gpus(state, shares, machines),
        shown,
        waiting,
        _processes(machines, namespace),
        violations if namespace is None else (),
        problems,
        ClusterQueues(calendars=calendars)
        if overview is None
        else ClusterQueues(overview.statuses(), overview.users(), overview.of_pods(), calendars),
    )


def pod_only(status: ClusterStatus, namespace: str, pod: str) -> ClusterStatus:
    """Keep one pod of the namespace that was read, and its GPUs."""
    shares = [each for each in status.shares if each.pod == pod]
    waiting = [each for each in status.waiting if each.pod == pod]
    if not shares and not waiting:
        hint = f"list them with: milligpu ps --cluster -n {namespace}"
        raise BadRequest("pod", f"{namespace}/{pod}", "a pod that holds or waits for a GPU", hint=hint)
    uuids = {each.gpu for each in shares}
    return replace(status, gpus=[gpu for gpu in status.gpus if gpu.uuid in uuids], shares=shares, waiting=waiting)


def _containers(state: ClusterState, machines: Mapping[str, MachineStatus]) -> list[ShareUsage]:
    """Describe every container by its grant, with what its agent measured."""
    measured = {
        (use.namespace, use.pod, use.container, use.gpu): use
        for machine in machines.values()
        for use in machine.shares
    }
    gpus = {gpu.uuid: gpu for node in state.placer.snapshot.nodes.values() for gpu in node.gpus}
    return [
        _container(
            (pod.namespace, pod.name, container, share.gpu), entry.node, share, gpus.get(share.gpu), measured
        )
        for entry in state.bound()
        if entry.grant is not None
        for pod in (entry.spec.pod,)
        for container, shares in entry.grant.containers.items()
        for share in shares
    ]


def _container(
    place: _Place, node: str, held: GpuShare, gpu: Gpu | None, measured: Mapping[_Place, ShareUsage]
) -> ShareUsage:
    share = held.resolve(gpu)
    use = measured.get(place)
    model = gpu.model if gpu is not None else ""
    granted = ShareUsage(
        use.accelerator if use else AcceleratorStats("nvidia", model, held.gpu, share.mib * BYTES_PER_MIB),
        milli=share.milli,
        limit=share.limit if share.whole or gpu is None else min(gpu.milli, share.limit_on(gpu.policy, gpu.limit)),
        mib=share.mib,
        whole=share.whole,
        namespace=place[0],
        pod=place[1],
        container=place[2],
        node=node,
    )
    if use is None:
        return granted
    return msgspec.structs.replace(
        granted,
        memory_peak=use.memory_peak,
        utilization=use.utilization,
        waiting=use.waiting,
        gpu_time_ns=use.gpu_time_ns,
        waiting_ns=use.waiting_ns,
        throttled_ns=use.throttled_ns,
        refusals=use.refusals,
        energy=use.energy,
        power=use.power,
    )


def _sessions(machines: Mapping[str, MachineStatus]) -> list[ShareUsage]:
    return [
        msgspec.structs.replace(use, node=node)
        for node, machine in machines.items()
        for use in machine.shares
        if use.session
    ]


def _processes(machines: Mapping[str, MachineStatus], namespace: str | None) -> list[ProcessUsage]:
    return [
        msgspec.structs.replace(each, node=node)
        for node, machine in machines.items()
        for each in machine.processes
        if namespace in {None, each.namespace}
    ]


def _gpus(
    state: ClusterState, shares: Sequence[ShareUsage], machines: Mapping[str, MachineStatus]
) -> list[GpuStatus]:
    snapshot = state.placer.snapshot
    measured = {gpu.uuid: gpu for machine in machines.values() for gpu in machine.gpus}
    found: list[GpuStatus] = []
    for node in snapshot.nodes.values():
        for index, gpu in enumerate(node.gpus):
            cell = snapshot.cell_of[node.name, gpu.uuid]
            reading = measured.get(gpu.uuid)
            found.append(
                GpuStatus(
                    index,
                    gpu.uuid,
                    gpu.model,
                    gpu.milli,
                    gpu.mib,
                    max(0, int(snapshot.milli[cell])),
                    max(0, int(snapshot.mib[cell])),
                    node=node.name,
                    state=str(gpu.state),
                    message=gpu.message,
                    utilization=gpu_utilization(shares, gpu.uuid, gpu.milli),
                    policy=gpu.policy,
                    memory_used=reading.memory_used if reading else None,
                    temperature=reading.temperature if reading else None,
                    power=reading.power if reading else None,
                    throttled=reading.throttled if reading else None,
                    xids=reading.xids if reading else None,
                )
            )
    return found


def _machines(nodes: Sequence[KubeNode]) -> tuple[dict[str, MachineStatus], dict[str, str]]:
    """Ask every agent at once: the answers, and why others did not answer, by node."""
    addresses = {node.metadata.name: address for node in nodes if (address := agent_address(node))}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(addresses, pool.map(_ask, addresses.values()), strict=True))
    return (
        {name: answer for name, answer in answers.items() if isinstance(answer, MachineStatus)},
        {name: answer for name, answer in answers.items() if isinstance(answer, str)},
    )


def _silent(state: ClusterState, silent: Mapping[str, str]) -> list[str]:
    """Say why nodes have no measurements: the agent is away, or cannot be reached from here."""
    nodes, found = state.placer.snapshot.nodes, list[str]()
    for name, node in nodes.items():
        if any(gpu.state is GpuState.NO_AGENT for gpu in node.gpus):
            found.append(f"{name}: {node.gpus[0].message}")
        elif name in silent:
            found.append(f"{name}: no measurements, because its agent did not answer here: {silent[name]}")
    return found


def _ask(address: str) -> MachineStatus | str:
    """Return an agent's answer, or what went wrong."""
    try:
        with urlopen(f"http://{address}/stats", timeout=_TIMEOUT_S) as answer:
            return decode_status(answer.read())
    except (OSError, BadFormat) as error:
        return f"{address}: {error}"
