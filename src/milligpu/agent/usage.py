"""What the GPUs of this node are used for: containers and sessions, read on request.

Every number of a container was measured for that container: GPU time by the arbiter, memory by its usage page or,
for whole GPUs, by the driver for its processes. No number of a GPU is copied to the tenants that share it.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from milligpu.agent.attach_plan import NodePod
from milligpu.agent.attachment import Attachment
from milligpu.agent.attachments import AttachmentStore
from milligpu.agent.gpus import GpuWatch
from milligpu.agent.pod_processes import pod_uid_of_process
from milligpu.agent.samples import MeasuredGpu, gpu_sample, scaled, share_sample
from milligpu.metrics.node import GpuSample, ShareSample
from milligpu.model.footprint import NO_DEMAND, GpuDemand
from milligpu.model.gpu import Gpu
from milligpu.model.units import BYTES_PER_MIB
from milligpu.nvml.readings import GpuProcess
from milligpu.sessions.status import process_usages
from milligpu.tenancy.energy import EnergyAccounts
from milligpu.tenancy.tenants import Tenants
from milligpu.tenancy.usage import share_usage
from milligpu.wire.status import STATUS, GpuStatus, MachineStatus, ProcessUsage, ShareUsage, gpu_utilization


class UsageReader:
    """Reads pages, the arbiter and NVML."""

    def __init__(
        self,
        node: str,
        gpus: GpuWatch,
        attachments: AttachmentStore,
        *,
        tenants: Tenants,
        sessions: Callable[[], MachineStatus | None],
        demands: Callable[[], Mapping[str, GpuDemand]],
        energy: EnergyAccounts,
    ) -> None:
        """`sessions` is the status of this node's sessions, None without any; `demands` is what pods hold."""
        self._node = node
        self._gpus = gpus
        self._attachments = attachments
        self._tenants = tenants
        self._sessions = sessions
        self._demands = demands
        self._energy = energy

    def status(self, pods: Mapping[str, NodePod]) -> MachineStatus:
        """Describe the GPUs, and every container and session on them."""
        sessions = self._sessions()
        usages = self.usages(pods)
        demands = self._demands()
        gpus = [
            self._gpu(index, gpu, demands.get(gpu.uuid, NO_DEMAND), usages)
            for index, gpu in enumerate(self._gpus.gpus.values())
        ]
        processes = self._all_processes(pods)
        if sessions is None:
            return MachineStatus(STATUS.version, self._node, gpus, shares=usages, processes=processes)
        # Arguments may be secrets, and these pages are open to the network: programs are named without them.
        programs = [msgspec.structs.replace(each, command=each.command[:1]) for each in sessions.sessions]
        waiting = [msgspec.structs.replace(each, command=each.command[:1]) for each in sessions.waiting]
        return msgspec.structs.replace(
            sessions,
            machine=self._node,
            gpus=gpus,
            shares=usages,
            sessions=programs,
            waiting=waiting,
            processes=processes,
        )

    def usages(self, pods: Mapping[str, NodePod]) -> list[ShareUsage]:
        """Describe every container and session on every GPU that it holds."""
        found = [(each, pods.get(each.holder.uid)) for each in self._attachments.held.values()]
        containers = [use for each, pod in found if pod is not None for use in self._of(each, pod)]
        sessions = self._sessions()
        return containers + [self._with_energy(use) for use in (sessions.shares if sessions is not None else ())]

    def _with_energy(self, use: ShareUsage) -> ShareUsage:
        """Add the energy of a session, which is its service's business nowhere else."""
        energy = self._energy.holder(use.gpu, use.session)
        return use if energy is None else msgspec.structs.replace(use, energy=energy.joules, power=energy.watts)

    def _of(self, attached: Attachment, pod: NodePod) -> Iterable[ShareUsage]:
        uses = self._tenants.uses(attached.name)
        for number, held in enumerate(attached.shares):
            whole = held.share.whole
            processes = self._processes(held.gpu, pod.ref.uid) if whole else ()
            yield share_usage(
                held,
                self._gpus.gpus.get(held.gpu),
                uses[number] if number < len(uses) else None,
                memory_used=sum((each.memory or 0) * BYTES_PER_MIB for each in processes) if whole else None,
                utilization=sum(each.utilization or 0.0 for each in processes) if whole else None,
                energy=self._energy.holder(held.gpu, attached.name),
                namespace=pod.ref.namespace,
                pod=pod.ref.name,
                container=attached.holder.container,
            )

    def _processes(self, gpu: str, uid: str) -> tuple[GpuProcess, ...]:
        reading = self._gpus.readings.get(gpu)
        found = reading.processes if reading else ()
        return tuple(process for process in found if pod_uid_of_process(process.pid) == uid)

    def _all_processes(self, pods: Mapping[str, NodePod]) -> list[ProcessUsage]:
        found = process_usages(self._gpus.readings.values(), self._gpus.gpus.values())
        owners = [pods.get(pod_uid_of_process(each.pid) or "") for each in found]
        return [
            each
            if pod is None
            else msgspec.structs.replace(each, namespace=pod.ref.namespace, pod=pod.ref.name, session="")
            for each, pod in zip(found, owners, strict=True)
        ]

    def _gpu(self, index: int, gpu: Gpu, taken: GpuDemand, usages: Iterable[ShareUsage]) -> GpuStatus:
        reading = self._gpus.readings.get(gpu.uuid)
        return GpuStatus(
            index,
            gpu.uuid,
            gpu.model,
            gpu.milli,
            gpu.mib,
            max(0, gpu.allocatable - taken.milli),
            max(0, gpu.allocatable_mib - taken.mib),
            state=gpu.state.value,
            message=gpu.message,
            memory_used=None if reading is None else reading.memory_used_bytes,
            utilization=gpu_utilization(usages, gpu.uuid, gpu.milli),
            policy=gpu.policy,
            temperature=None if reading is None else reading.vitals.temperature,
            power=None if reading is None else scaled(reading.milliwatts, 1000),
            throttled=self._throttled(gpu.uuid),
            xids=self._gpus.xids.get(gpu.uuid, 0),
        )

    def _throttled(self, uuid: str) -> dict[str, float] | None:
        times = self._gpus.throttle_times.times.get(uuid)
        return None if times is None else {str(reason): seconds for reason, seconds in times.seconds.items()}

    def samples(self, pods: Mapping[str, NodePod]) -> tuple[list[GpuSample], list[ShareSample]]:
        """Return the samples for the metrics of GPUs, and of containers and sessions."""
        usages, known = self.usages(pods), self._gpus.gpus
        gpus = {
            gpu.uuid: gpu_sample(self._measured(index, gpu), [use for use in usages if use.gpu == gpu.uuid])
            for index, gpu in enumerate(known.values())
        }
        shares = [share_sample(use, gpus[use.gpu], known[use.gpu]) for use in usages if use.gpu in gpus]
        return list(gpus.values()), shares

    def _measured(self, index: int, gpu: Gpu) -> MeasuredGpu:
        return MeasuredGpu(
            index,
            gpu,
            self._node,
            self._gpus.readings.get(gpu.uuid),
            self._gpus.xids.get(gpu.uuid, 0),
            self._gpus.throttle_times.times.get(gpu.uuid),
            self._energy.gpus.get(gpu.uuid),
        )
