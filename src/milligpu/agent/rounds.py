"""What the agent does again and again: measure what sessions make of their shares, look for whoever is outside."""

import logging
import signal
from collections.abc import Callable, Mapping

from milligpu.agent.audit import Auditor, Finding, Granted, Seen, audit
from milligpu.agent.keeper import Keeper
from milligpu.agent.meter import Meter
from milligpu.agent.processes import Process, members, process, session_of
from milligpu.agent.record import Session
from milligpu.wire.usage import UsagePage

log = logging.getLogger(__name__)

_MIB = 1 << 20


class Rounds:
    """Measured use and findings."""

    def __init__(self, keeper: Keeper, now: Callable[[], float], *, kill: bool = False) -> None:
        """`kill`: whoever is outside its session's share is ended; strangers are not ours to end."""
        self._keeper = keeper
        self._now = now
        self._kill = kill
        self._meter = Meter()
        self._whole: dict[tuple[str, str], float] = {}
        self.auditor = Auditor()

    def measured(self, session: str, number: int, gpu: str) -> float | None:
        """The part of the time that a session had of its GPU of this number; None when nobody knows."""
        rates = self._meter.rates(session)
        return rates[number] if rates is not None else self._whole.get((session, gpu))

    def measure(self) -> None:
        """Read the arbiter's accounts."""
        for over in self._meter.known - self._keeper.sessions.keys():
            self._meter.forget(over)
        for session, charged in self._keeper.charged():
            self._meter.add(session, self._now(), charged)

    def audit(self) -> None:
        """Compare the driver's counts with the accounts, and report what is new."""
        seen = self._keeper.hardware.seen()
        owners = self._owners({each.pid for each in seen})
        self._whole = self._whole_use(seen, owners)
        used: dict[tuple[str, str], float] = {}
        for each in seen:
            place = owners.get(each.pid, ""), each.gpu
            used[place] = used.get(place, 0.0) + (each.mib or 0.0)
        self._keeper.counted(used)
        granted = [
            place
            for session in self._keeper.sessions.values()
            if not session.whole and session.id not in self._keeper.closing
            for place in _places(session, self._keeper.disk.tenant(session.id).usage())
        ]
        for finding in self.auditor.look(audit(seen, granted, owners)):
            log.warning(
                "audit: %s on %s: session %s: %s", finding.offence, finding.gpu, finding.session, finding.detail
            )
            if self._kill and finding.session is not None:
                self._end(finding)

    def _owners(self, pids: set[int]) -> Mapping[int, str]:
        """In which session processes were started; only the session's own user can have started them there."""
        found: dict[int, str] = {}
        for pid in pids:
            session = self._keeper.sessions.get(session_of(pid) or "")
            there = process(pid)
            if session is not None and there is not None and there.uid == session.process.uid:
                found[pid] = session.id
        return found

    def _whole_use(self, seen: list[Seen], owners: Mapping[int, str]) -> dict[tuple[str, str], float]:
        """Whole GPUs have no account; what the driver says must do."""
        found: dict[tuple[str, str], float] = {}
        for each in seen:
            session = self._keeper.sessions.get(owners.get(each.pid, ""))
            if session is not None and session.whole and each.milli is not None:
                found[session.id, each.gpu] = found.get((session.id, each.gpu), 0.0) + each.milli / 1000
        return found

    def _end(self, finding: Finding) -> None:
        ended: list[Process | None] = (
            [process(finding.pid)] if finding.pid is not None else list(members(finding.session or ""))
        )
        for each in ended:
            if each is not None:
                each.kill(signal.SIGKILL)


def _places(session: Session, usage: UsagePage | None) -> list[Granted]:
    pids = frozenset[int]() if usage is None else frozenset(slot.pid for slot in usage.processes)
    mine = frozenset(pid for pid in pids if (found := process(pid)) and found.uid == session.process.uid)
    accounts = () if usage is None else usage.accounts
    return [
        Granted(
            session.id,
            share.gpu,
            share.mib,
            share.limit,
            accounts[number].used / _MIB if number < len(accounts) else None,
            mine,
        )
        for number, share in enumerate(session.shares)
    ]
