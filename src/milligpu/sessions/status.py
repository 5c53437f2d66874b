"""The status of this machine's sessions, for `ps`, `top` and the agent's `/stats`. Reading it changes nothing."""

from collections.abc import Iterable

from milligpu.model.gpu import Gpu
from milligpu.model.request import describe_share
from milligpu.model.units import BYTES_PER_MIB, WHOLE
from milligpu.nvml.readings import GpuReading
from milligpu.sessions.manager import SessionManager
from milligpu.sessions.members import session_of
from milligpu.sessions.monitor import SessionMonitor
from milligpu.sessions.record import Session
from milligpu.tenancy.processes import command_name
from milligpu.tenancy.usage import share_usage
from milligpu.wire.status import (
    STATUS,
    GpuStatus,
    MachineStatus,
    ProcessUsage,
    SessionStatus,
    ShareUsage,
    WaitingSession,
)


def machine_status(manager: SessionManager, monitor: SessionMonitor) -> MachineStatus:
    """Describe the GPUs as they are known, every session, and the queue."""
    machine = manager.machine or manager.source.known()
    gpus = machine.gpus if machine is not None else ()
    readings = {each.uuid: each for each in manager.source.readings()}
    return MachineStatus(
        STATUS.version,
        manager.name,
        [_gpu(manager, index, gpu, readings.get(gpu.uuid)) for index, gpu in enumerate(gpus)],
        software=machine is not None and machine.softgpu is not None,
        driver=machine.driver if machine is not None else "",
        cuda=machine.cuda if machine is not None else "",
        shares=[use for session in manager.sessions.values() for use in session_usage(manager, monitor, session)],
        sessions=[_session(session) for session in manager.sessions.values()],
        waiting=[
            WaitingSession(
                each.process.pid,
                each.process.uid,
                list(each.command),
                describe_share(each.request.share),
                each.last.message if each.last else "",
                each.last.behind if each.last else [],
            )
            for each in manager.queue.all
        ],
        processes=process_usages(readings.values(), gpus),
        violations=monitor.auditor.current,
        violation_counts={str(kind): count for kind, count in monitor.auditor.counts.items()},
    )


def session_usage(manager: SessionManager, monitor: SessionMonitor, session: Session) -> Iterable[ShareUsage]:
    """Describe what one session holds and uses of each of its GPUs."""
    uses = manager.tenants.uses(session.id)
    for number, share in enumerate(session.shares):
        yield share_usage(
            share,
            manager.placer.gpus.get(share.gpu),
            uses[number] if number < len(uses) else None,
            utilization=monitor.whole_utilization.get((session.id, share.gpu)),
            session=session.id,
        )


def process_usages(readings: Iterable[GpuReading], gpus: Iterable[Gpu]) -> list[ProcessUsage]:
    """Describe the processes on all GPUs, each with its session if it has one.

    The driver counts a GPU's own time; the document counts compute as it does for shares.
    """
    capacity = {gpu.uuid: gpu.milli / WHOLE for gpu in gpus}
    return [
        ProcessUsage(
            each.gpu,
            each.pid,
            command_name(each.pid),
            None if each.memory is None else each.memory * BYTES_PER_MIB,
            None if each.utilization is None else each.utilization * capacity.get(each.gpu, 1.0),
            session=session_of(each.pid) or "",
        )
        for reading in readings
        for each in reading.processes
    ]


def _gpu(manager: SessionManager, index: int, gpu: Gpu, reading: GpuReading | None) -> GpuStatus:
    grants = manager.grants
    free = manager.placer.free(gpu, grants) if gpu.uuid in manager.placer.gpus else None
    return GpuStatus(
        index=index,
        uuid=gpu.uuid,
        model=gpu.model,
        milli=gpu.milli,
        mib=gpu.mib,
        free_milli=gpu.allocatable if free is None else free.milli,
        free_mib=gpu.allocatable_mib if free is None else free.mib,
        state=gpu.state.value,
        message=gpu.message,
        memory_used=None if reading is None else _memory(reading),
        temperature=None if reading is None else reading.vitals.temperature,
        power=None if reading is None or reading.milliwatts is None else reading.milliwatts / 1000,
        throttled=None if reading is None else _throttled(reading),
        policy=manager.placer.gpus_with_policy(grants).get(gpu.uuid, gpu).policy,
    )


def _throttled(reading: GpuReading) -> dict[str, float] | None:
    """Seconds by reason; None where the driver does not count them, because nobody samples here."""
    times = reading.vitals.throttled_ns
    return None if times is None else {str(reason): time / 1e9 for reason, time in times.items()}


def _memory(reading: GpuReading) -> int:
    return sum(one.memory or 0 for one in reading.processes) * BYTES_PER_MIB


def _session(session: Session) -> SessionStatus:
    return SessionStatus(
        session.id,
        session.process.pid,
        session.process.uid,
        list(session.command),
        session.since,
        session.grant.priority,
    )
