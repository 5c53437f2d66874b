"""Measures sessions and audits their processes, again and again."""

import logging
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

from milligpu.model.units import BYTES_PER_MIB, Milli
from milligpu.nvml.readings import GpuProcess
from milligpu.sessions.manager import SessionManager
from milligpu.sessions.members import members, session_of
from milligpu.sessions.record import Session
from milligpu.tenancy.audit import AuditedShare, Auditor, audit
from milligpu.tenancy.processes import ProcessId, process
from milligpu.wire.status import Violation
from milligpu.wire.usage import UsagePage

log = logging.getLogger(__name__)


class SessionMonitor:
    """Utilization of whole GPUs, and violations."""

    def __init__(self, manager: SessionManager, now: Callable[[], float], *, kill: bool = False) -> None:
        """`kill`: end processes that exceed or bypass their session's share. Other processes are only reported."""
        self._manager = manager
        self._now = now
        self._kill = kill
        self.auditor = Auditor()
        self.whole_utilization: dict[tuple[str, str], float] = {}
        """By session and GPU, as the driver counts it: whole GPUs have no lease to measure."""

    def measure(self) -> None:
        self._manager.tenants.sample(self._now())

    def audit(self) -> None:
        """Compare the driver's counts with the usage pages, and report new violations."""
        manager = self._manager
        processes = manager.source.processes()
        owners = self._owners({each.pid for each in processes})
        self.whole_utilization = self._whole_utilization(processes, owners)
        used: dict[tuple[str, str], float] = {}
        for each in processes:
            place = owners.get(each.pid, ""), each.gpu
            used[place] = used.get(place, 0.0) + (each.memory or 0.0)
        manager.note_memory_use(used)
        shares = [
            share
            for session in manager.sessions.values()
            if session.id in manager.tenants and session.id not in manager.closing
            for share in _audited(
                session,
                manager.tenants.usage_page(session.id),
                manager.tenants.limits(session.id),
                lambda gpu: manager.source.overheads(gpu).slack_bytes,
            )
        ]
        for violation in self.auditor.confirm(audit(processes, shares, owners)):
            log.warning(
                "audit: %s on %s: session %s: %s",
                violation.kind,
                violation.gpu,
                violation.tenant,
                violation.message,
            )
            if self._kill and violation.tenant is not None:
                self._end(violation)

    def _owners(self, pids: set[int]) -> Mapping[int, str]:
        """Return the session of each process; only the session's own user can have started it there."""
        found: dict[int, str] = {}
        for pid in pids:
            session = self._manager.sessions.get(session_of(pid) or "")
            running = process(pid)
            if session is not None and running is not None and running.uid == session.process.uid:
                found[pid] = session.id
        return found

    def _whole_utilization(
        self, processes: Iterable[GpuProcess], owners: Mapping[int, str]
    ) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for each in processes:
            session = self._manager.sessions.get(owners.get(each.pid, ""))
            if session is not None and session.whole and each.utilization is not None:
                found[session.id, each.gpu] = found.get((session.id, each.gpu), 0.0) + each.utilization
        return found

    def _end(self, violation: Violation) -> None:
        ended: list[ProcessId | None] = (
            [process(violation.pid)] if violation.pid is not None else list(members(violation.tenant or ""))
        )
        for each in ended:
            if each is not None:
                each.kill(signal.SIGKILL)


def _audited(
    session: Session, usage: UsagePage | None, limits: Sequence[Milli], slack_bytes: Callable[[str], int]
) -> list[AuditedShare]:
    pids = frozenset[int]() if usage is None else frozenset(slot.pid for slot in usage.processes)
    own = frozenset(pid for pid in pids if (found := process(pid)) and found.uid == session.process.uid)
    accounts = () if usage is None else usage.accounts
    return [
        AuditedShare(
            session.id,
            held.gpu,
            held.share.mib,
            limits[number],
            accounts[number].used / BYTES_PER_MIB if number < len(accounts) else None,
            own,
            slack_bytes(held.gpu) / BYTES_PER_MIB,
        )
        for number, held in enumerate(session.shares)
    ]
