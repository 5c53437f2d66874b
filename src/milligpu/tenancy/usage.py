"""What the holder of a share uses, as the document from which `ps`, `top`, `/stats` and metrics are made. Pure."""

from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare
from milligpu.model.units import BYTES_PER_MIB, WHOLE
from milligpu.tenancy.energy import HolderEnergy
from milligpu.tenancy.tenants import TenantUse
from milligpu.wire.status import AcceleratorStats, ShareUsage

_MAKE = "nvidia"


def share_usage(
    held: GpuShare,
    gpu: Gpu | None,
    use: TenantUse | None,
    *,
    memory_used: int | None = None,
    utilization: float | None = None,
    energy: HolderEnergy | None = None,
    namespace: str = "",
    pod: str = "",
    container: str = "",
    session: str = "",
) -> ShareUsage:
    """Describe one share. `memory_used` and `utilization` are for a whole GPU, which has no pages: the driver's.

    Pages and drivers count a GPU's own time. The document counts compute as requests do: all the time of a vGPU of
    half a card is 0.5 GPU.
    """
    memory, lease = (use.memory, use.lease) if use is not None else (None, None)
    busy = use.utilization if use is not None else utilization
    share = held.resolve(gpu)
    capacity = gpu.milli if gpu is not None else WHOLE
    return ShareUsage(
        AcceleratorStats(
            _MAKE,
            gpu.model if gpu is not None else "",
            held.gpu,
            share.mib * BYTES_PER_MIB,
            memory.used if memory is not None else memory_used,
            None if busy is None else round(100 * busy),
        ),
        milli=share.milli,
        limit=share.limit if use is None else use.limit if gpu is None else gpu.milli_of_time(use.limit),
        mib=share.mib,
        whole=share.whole,
        namespace=namespace,
        pod=pod,
        container=container,
        session=session,
        memory_peak=None if memory is None else memory.peak,
        utilization=None if busy is None else busy * capacity / WHOLE,
        waiting=None if lease is None else bool(lease.wanting) and not lease.holding,
        gpu_time_ns=None if lease is None else lease.charged_ns * capacity // WHOLE,
        waiting_ns=None if lease is None else lease.waited_ns,
        throttled_ns=None if lease is None else lease.throttled_ns,
        refusals=None if memory is None else memory.refused,
        energy=None if energy is None else energy.joules,
        power=None if energy is None else energy.watts,
    )
