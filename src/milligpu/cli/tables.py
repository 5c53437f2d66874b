"""The tables of `ps`, for one machine and for a cluster."""

import pwd
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from milligpu.cli.output import TableData
from milligpu.model.units import BYTES_PER_MIB, show_milli
from milligpu.wire.status import GpuStatus, MachineStatus, ShareUsage

if TYPE_CHECKING:
    from milligpu.status.cluster import ClusterStatus

_UNKNOWN = "-"


def session_table(status: MachineStatus, *, wide: bool = False) -> TableData:
    """Make a row for each session and GPU of it."""
    index = _indices(status.gpus)
    rows = [
        [
            session.id,
            str(session.pid),
            user_name(session.uid),
            index.get(use.gpu, "?"),
            show_share(use),
            _fraction(use.utilization),
            _used(use.memory_used, use.mib),
            *([str(session.priority)] if wide else []),
            " ".join(session.command),
        ]
        for session in status.sessions
        for use in status.shares
        if use.session == session.id
    ]
    extra = ["PRIORITY"] if wide else []
    columns = ["ID", "PID", "USER", "GPU", "SHARE", "MEASURED", "MEMORY", *extra, "COMMAND"]
    return TableData(columns, rows, ["PID", "SHARE", "MEASURED", "MEMORY", "PRIORITY"])


def share_table(status: "ClusterStatus") -> TableData:
    """Make a row for each container or session and GPU of it."""
    index = _indices(status.gpus)
    rows = [
        [
            use.namespace or _UNKNOWN,
            use.pod or f"session {use.session}",
            use.container or _UNKNOWN,
            use.node,
            index.get(use.gpu, "?"),
            show_share(use),
            _fraction(use.utilization) + (" waits" if use.waiting else ""),
            _used(use.memory_used, use.mib) if use.mib else _UNKNOWN,
        ]
        for use in status.shares
    ]
    columns = ["NAMESPACE", "POD", "CONTAINER", "NODE", "GPU", "SHARE", "MEASURED", "MEMORY"]
    return TableData(columns, rows, ["SHARE", "MEASURED", "MEMORY"])


def waiting_session_table(status: MachineStatus) -> TableData:
    """Make a row for each command that waits."""
    rows = [
        [
            str(each.pid),
            user_name(each.uid),
            each.request,
            each.message + (f"; behind {each.behind[-1]}" if each.behind else ""),
            " ".join(each.command),
        ]
        for each in status.waiting
    ]
    return TableData(["PID", "USER", "REQUEST", "WAITS BECAUSE", "COMMAND"], rows)


def waiting_pod_table(status: "ClusterStatus") -> TableData:
    """Make a row for each pod that waits."""
    rows = [[each.namespace, each.pod, each.message] for each in status.waiting]
    return TableData(["NAMESPACE", "POD", "WAITS BECAUSE"], rows)


def _indices(gpus: Sequence[GpuStatus]) -> Mapping[str, str]:
    """How tables name a GPU: by its index, with its state unless it is ok."""
    return {gpu.uuid: f"{gpu.index}{'' if gpu.state == 'ok' else f' {gpu.state}'}" for gpu in gpus}


def show_share(use: ShareUsage) -> str:
    """A share as people write it, with its limit if that differs."""
    if use.whole:
        return "whole"
    return show_milli(use.milli) + (f" to {show_milli(use.limit)}" if use.limit > max(1, use.milli) else "")


def _fraction(part: float | None) -> str:
    return _UNKNOWN if part is None else f"{part:.2f}"


def _used(used: int | None, of: int) -> str:
    return f"{_UNKNOWN if used is None else round(used / BYTES_PER_MIB)} / {of} MiB"


def user_name(uid: int) -> str:
    """The name of a user, or the uid if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
