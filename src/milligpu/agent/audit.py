"""The audit of containers: processes without a share, or beyond it, are logged, counted and reported as events.

The kernel says to which container a process belongs: its cgroup names the pod, and among several containers of a
pod the mounted tenant directory names the container. Neither can be changed from inside a container.
"""

import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from milligpu.agent.attach_plan import NodePod
from milligpu.agent.attachment import Attachment
from milligpu.agent.attachments import AttachmentStore
from milligpu.agent.gpus import GpuWatch
from milligpu.agent.pod_processes import pod_uid_of_process
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.model.reasons import EventReason, ViolationKind
from milligpu.model.units import BYTES_PER_MIB
from milligpu.nvml.readings import GpuReading
from milligpu.tenancy.audit import AuditedShare, Auditor, audit
from milligpu.tenancy.processes import memory_maps, process, start_time
from milligpu.tenancy.tenants import Tenants
from milligpu.wire.status import Violation
from milligpu.wire.usage import UsagePage

_PROC = Path("/proc")
# The fourth field of a mount is its root: the directory of the node that it shows.
_MOUNTED = re.compile(r"^\d+ \d+ \S+ \S*/([0-9a-f]+)/tenant /", re.M)
_MAPPED = re.compile(r"(/\S*/libcuda\.so\S*)$", re.M)
_NS_PID = re.compile(r"^NSpid:.*\s(\d+)$", re.M)

log = structlog.get_logger()


class ContainerAudit:
    """Compares what the driver counts for each process with the share of its container."""

    def __init__(
        self,
        events: EventRecorder,
        gpus: GpuWatch,
        attachments: AttachmentStore,
        *,
        tenants: Tenants,
        elsewhere: Callable[[int], bool],
        kill: bool = False,
    ) -> None:
        """`elsewhere` says whether the session service audits a process.

        `kill`: end processes that exceed or bypass their container's share. Others are only reported.
        """
        self._events = events
        self._gpus = gpus
        self._attachments = attachments
        self._tenants = tenants
        self._elsewhere = elsewhere
        self._auditor = Auditor()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._kill = kill
        self._pids: dict[tuple[str, str], list[int]] = {}
        """The processes of each container on each GPU, at the last look."""

    def counts(self, gpu: str) -> dict[str, int]:
        """Count the violations on this GPU since the agent started, by kind."""
        return {offence: count for (where, offence), count in self._counts.items() if where == gpu}

    def current(self, pods: Mapping[str, NodePod]) -> list[Violation]:
        """List the violations that exist now; containers are named as people know them."""
        return [
            each if each.tenant is None else msgspec.structs.replace(each, tenant=self._name(each.tenant, pods))
            for each in self._auditor.current
        ]

    def _name(self, tenant: str, pods: Mapping[str, NodePod]) -> str:
        held = self._attachments.held.get(tenant)
        pod = pods.get(held.holder.uid) if held is not None else None
        if held is None or pod is None:
            return tenant
        return f"{pod.ref.namespace}/{pod.ref.name}/{held.holder.container}"

    async def look(self, pods: Mapping[str, NodePod]) -> None:
        """Audit once; a violation that was found twice in a row is reported."""
        await self._gpus.read()
        self._pids = {}
        found = [each for reading in self._gpus.readings.values() for each in self._violations(reading)]
        for violation in self._auditor.confirm(found):
            self._counts[violation.gpu, str(violation.kind)] += 1
            self._report(with_libraries(violation), pods)
            if self._kill and violation.tenant is not None:
                self._end(violation)

    def _violations(self, reading: GpuReading) -> list[Violation]:
        """Audit one GPU: a share of another GPU does not count."""
        here = [each for each in self._attachments.held.values() if each.uses(reading.uuid)]
        processes = [each for each in reading.processes if not self._elsewhere(each.pid)]
        owners = {each.pid: owner.name for each in processes if (owner := owner_of(each.pid, here))}
        for pid, name in owners.items():
            self._pids.setdefault((name, reading.uuid), []).append(pid)
        granted = [
            self._granted(each, reading.uuid, [pid for pid, name in owners.items() if name == each.name])
            for each in here
            if each.name in owners.values() and not each.whole
        ]
        return audit(processes, granted, owners)

    def _granted(self, attached: Attachment, gpu: str, pids: Iterable[int]) -> AuditedShare:
        at = next(number for number, share in enumerate(attached.shares) if share.gpu == gpu)
        share, page = attached.shares[at].share, self._tenants.usage_page(attached.name)
        limits = self._tenants.limits(attached.name)
        limit = limits[at] if limits else share.limit
        account = page.accounts[at].used / BYTES_PER_MIB if page and at < len(page.accounts) else None
        slack = self._attachments.slack_bytes(gpu) / BYTES_PER_MIB
        return AuditedShare(attached.name, gpu, share.mib, limit, account, _accounted(page, pids), slack)

    def _report(self, violation: Violation, pods: Mapping[str, NodePod]) -> None:
        pod = pods.get(self._uid(violation) or "")
        where = str(pod.ref) if pod else "no pod"
        log.warning(
            "Found violation", kind=str(violation.kind), gpu=violation.gpu, pod=where, message=violation.message
        )
        if pod is not None:
            message = f"{violation.kind} on GPU {violation.gpu}: {violation.message}"
            self._events.record(PodEvent(pod.ref, EventReason.OUTSIDE_SHARE, "Audit", message))

    def _end(self, violation: Violation) -> None:
        """Kill the process, or all of the container on this GPU if the sum of them is too much."""
        all_of_it = self._pids.get((violation.tenant or "", violation.gpu), [])
        for pid in all_of_it if violation.pid is None else [violation.pid]:
            found = process(pid)
            # The kernel may have given the number to another process since.
            if found is not None and pod_uid_of_process(pid) == self._uid(violation):
                found.kill(signal.SIGKILL)
                log.warning("Killed process", pid=pid, kind=str(violation.kind), gpu=violation.gpu)

    def _uid(self, violation: Violation) -> str | None:
        held = self._attachments.held.get(violation.tenant or "")
        if held is not None:
            return held.holder.uid
        return None if violation.pid is None else pod_uid_of_process(violation.pid)


def with_libraries(violation: Violation) -> Violation:
    """Name the libcuda that a process has loaded, if it went around ours: most images do not mean to."""
    if violation.kind is not ViolationKind.BYPASS or violation.pid is None:
        return violation
    found = mapped_drivers(memory_maps(violation.pid))
    if not found:
        return violation
    return msgspec.structs.replace(violation, message=f"{violation.message}; it has loaded {', '.join(found)}")


def mapped_drivers(maps: str) -> list[str]:
    """Return the paths of every libcuda in a process's memory maps."""
    return list(dict.fromkeys(_MAPPED.findall(maps)))


def owner_of(pid: int, here: Iterable[Attachment], proc: Path = _PROC) -> Attachment | None:
    """Return the attachment on a GPU to which a process belongs."""
    uid = pod_uid_of_process(pid, proc)
    mine = [each for each in here if each.holder.uid == uid]
    if len(mine) <= 1:
        return mine[0] if mine else None
    mounted = _MOUNTED.findall(_text(proc / str(pid) / "mountinfo"))
    return next((each for each in mine if each.name in mounted), None)


def _accounted(page: UsagePage | None, pids: Iterable[int]) -> frozenset[int]:
    """Return the processes that are on the usage page, which has their pids inside the container."""
    known = {(slot.pid, slot.started) for slot in page.processes} if page else set[tuple[int, int]]()
    return frozenset(pid for pid in pids if (inner_pid(pid), start_time(pid)) in known)


def inner_pid(pid: int, proc: Path = _PROC) -> int | None:
    """Return the pid of a process in its own namespace."""
    match = _NS_PID.search(_text(proc / str(pid) / "status"))
    return int(match[1]) if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
