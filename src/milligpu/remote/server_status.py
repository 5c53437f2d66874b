"""What a GPU server knows of its machine: from the machine's own session service."""

import asyncio
import os
from pathlib import Path

import msgspec

from milligpu.remote.idle import SessionUse
from milligpu.sessions.client import SessionClient
from milligpu.sessions.protocol import ReadStatus, StatusRead
from milligpu.wire.status import MachineStatus


async def machine_status() -> MachineStatus:
    answer = await asyncio.to_thread(SessionClient(os.environ).ask, ReadStatus())
    assert isinstance(answer, StatusRead)
    return answer.status


def only_sessions(status: MachineStatus, sessions: set[str]) -> MachineStatus:
    """What a token's owner may see: the GPUs, and its own sessions."""
    return msgspec.structs.replace(
        status,
        shares=[each for each in status.shares if each.session in sessions],
        sessions=[each for each in status.sessions if each.id in sessions],
        waiting=[],
        processes=[],
        violations=[],
        violation_counts={},
    )


def session_use(status: MachineStatus, session: str, host: int) -> SessionUse:
    times = [each.gpu_time_ns for each in status.shares if each.session == session]
    known = [each for each in times if each is not None]
    try:
        workers = len(Path(f"/proc/{host}/task/{host}/children").read_text().split())
    except OSError:
        workers = 0
    return SessionUse(sum(known) if times and len(known) == len(times) else None, workers)
