"""The status of this machine, from its session service; without one, the GPUs that can be seen. Starts nothing."""

import os
import platform

import msgspec

from milligpu.model.errors import BadRequest, Unavailable
from milligpu.model.gpu import Gpu
from milligpu.nvml.readings import GpuReading
from milligpu.sessions.client import SessionClient
from milligpu.sessions.gpu_source import LocalGpuSource
from milligpu.sessions.paths import ServicePaths
from milligpu.sessions.protocol import ReadStatus, StatusRead
from milligpu.sessions.status import process_usages
from milligpu.status.data import plain
from milligpu.wire.status import STATUS, GpuStatus, MachineStatus


def read_machine_status() -> MachineStatus:
    """Ask the session service if it runs, else look for GPUs."""
    client = SessionClient(os.environ)
    if not client.is_running():
        return _without_service()
    answer = client.ask(ReadStatus())
    if not isinstance(answer, StatusRead):
        raise Unavailable("the session service sent an unexpected answer")
    return answer.status


def session_only(status: MachineStatus, session: str) -> MachineStatus:
    """Keep the sessions whose ID starts with `session`, and their GPUs."""
    sessions = [each for each in status.sessions if each.id.startswith(session)]
    if not sessions:
        raise BadRequest("ID", session, "the ID of a session, or its beginning", hint="list them with: milligpu ps")
    ids = {each.id for each in sessions}
    shares = [use for use in status.shares if use.session in ids]
    gpus = [gpu for gpu in status.gpus if gpu.uuid in {use.gpu for use in shares}]
    return msgspec.structs.replace(status, gpus=gpus, shares=shares, sessions=sessions, waiting=[], violations=[])


def machine_data(status: MachineStatus) -> dict[str, object]:
    """Turn a status into plain data, with the shares of each session inside it."""
    found = {
        field: plain(getattr(status, field)) for field in status.__struct_fields__ if field not in ("v", "shares")
    }
    found["sessions"] = [
        {
            "id": session.id,
            "pid": session.pid,
            "uid": session.uid,
            "command": session.command,
            "since": session.since,
            "priority": session.priority,
            "shares": [plain(use) for use in status.shares if use.session == session.id],
        }
        for session in status.sessions
    ]
    return found


def _without_service() -> MachineStatus:
    source = LocalGpuSource(ServicePaths.own(os.environ), os.environ)
    machine = source.known()
    gpus = machine.gpus if machine is not None else ()
    readings = {each.uuid: each for each in source.readings()}
    return MachineStatus(
        STATUS.version,
        platform.node(),
        [_gpu(index, gpu, readings.get(gpu.uuid)) for index, gpu in enumerate(gpus)],
        software=machine is not None and machine.softgpu is not None,
        processes=process_usages(readings.values(), gpus),
    )


def _gpu(index: int, gpu: Gpu, reading: GpuReading | None) -> GpuStatus:
    found = GpuStatus(
        index,
        gpu.uuid,
        gpu.model,
        gpu.milli,
        gpu.mib,
        gpu.milli,
        gpu.mib,
        state=gpu.state.value,
        message=gpu.message,
        policy=gpu.policy,
    )
    if reading is None:
        return found
    return msgspec.structs.replace(
        found,
        memory_used=reading.memory_used_bytes,
        utilization=None if reading.utilization is None else reading.utilization / 100,
        temperature=reading.vitals.temperature,
        power=None if reading.milliwatts is None else reading.milliwatts / 1000,
    )
