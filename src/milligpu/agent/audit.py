"""Whoever is outside: what the driver counts for each process, compared with the accounts that hold it to a share.

A limits library can be walked around from inside its process (the real library opened by its path, a static binary,
raw ioctls), and a tenant can spoil its own account. The driver's own count cannot be changed by either. `audit` is
pure; `Auditor` asks twice before it believes, because two counts are never taken at one moment.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

# What a driver may count for a process beyond what anybody could foresee: code, printf buffers, alignment.
_SLACK_MIB = 64
# NVML's utilisation is rounded, sampled and of another moment than the limit's window.
_SLACK_MILLI = 150


class Offence(StrEnum):
    """How somebody is outside."""

    STRANGER = "stranger"
    """On a GPU and in no session."""
    AROUND = "around-the-limits"
    """In a session, on its GPU, and not in the session's account: it reached the driver by another way."""
    MEMORY = "over-memory"
    """The driver counts more memory than the cap."""
    ACCOUNT = "spoilt-account"
    """The driver counts more memory than the session's own account."""
    TIME = "over-time"
    """The driver counts more time than the limit."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A process on a GPU, as the driver counts it."""

    gpu: str
    pid: int
    mib: float | None = None
    milli: int | None = None
    """Of the GPU's time, of late."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What a session may use of one GPU, and what its own account says of it."""

    session: str
    gpu: str
    mib: int
    limit: int
    account_mib: float | None
    """None when the account does not read."""
    pids: frozenset[int]
    """The processes in the account."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One who is outside."""

    offence: Offence
    gpu: str
    session: str | None
    pid: int | None
    detail: str

    @property
    def key(self) -> tuple[Offence, str, str | None, int | None]:
        """The same finding, whatever its numbers are now."""
        return self.offence, self.gpu, self.session, self.pid


def audit(seen: Sequence[Seen], granted: Sequence[Granted], session_of: Mapping[int, str]) -> list[Finding]:
    """Compare; `session_of` says in which session a process was started. Whole GPUs have no account to compare."""
    found: list[Finding] = []
    places = {(each.session, each.gpu): each for each in granted}
    owners = dict(session_of) | {pid: each.session for each in granted for pid in each.pids}
    groups: dict[tuple[str, str], list[Seen]] = {}
    for each in seen:
        session = owners.get(each.pid)
        if session is None:
            detail = f"process {each.pid} uses {_mib(each.mib)} and belongs to no session"
            found.append(Finding(Offence.STRANGER, each.gpu, None, each.pid, detail))
        elif (session, each.gpu) in places:
            groups.setdefault((session, each.gpu), []).append(each)
            if each.pid not in places[session, each.gpu].pids:
                detail = f"process {each.pid} uses {_mib(each.mib)} that its session's account does not know"
                found.append(Finding(Offence.AROUND, each.gpu, session, each.pid, detail))
    for place, processes in groups.items():
        found += _sums(places[place], processes)
    return found


def _sums(place: Granted, processes: Sequence[Seen]) -> Iterable[Finding]:
    used = sum(each.mib or 0 for each in processes)
    busy = sum(each.milli or 0 for each in processes)
    slack = _SLACK_MIB * len(processes)

    def finding(offence: Offence, detail: str) -> Finding:
        return Finding(offence, place.gpu, place.session, None, detail)

    if used > place.mib + slack:
        yield finding(Offence.MEMORY, f"the driver counts {_mib(used)}, the cap is {place.mib} MiB")
    elif place.account_mib is None or used > place.account_mib + slack:
        yield finding(
            Offence.ACCOUNT, f"the driver counts {_mib(used)}, the account says {_mib(place.account_mib)}"
        )
    if busy > place.limit + _SLACK_MILLI:
        yield finding(
            Offence.TIME, f"the driver counts {busy / 10:.0f} % of the GPU, the limit is {place.limit / 10:.0f} %"
        )


def _mib(amount: float | None) -> str:
    return "an unknown amount" if amount is None else f"{amount:.0f} MiB"


class Auditor:
    """Remembers who was outside: twice in a row is a finding, and each is reported once."""

    def __init__(self) -> None:
        self._last: set[tuple[Offence, str, str | None, int | None]] = set()
        self._known: set[tuple[Offence, str, str | None, int | None]] = set()
        self.current: list[Finding] = []
        """Who is outside now."""
        self.counts: Counter[Offence] = Counter()
        """How many there have been."""

    def look(self, found: Sequence[Finding]) -> list[Finding]:
        """Those that are new."""
        self.current = [each for each in found if each.key in self._last]
        self._last = {each.key for each in found}
        new = [each for each in self.current if each.key not in self._known]
        self._known = {each.key for each in self.current}
        self.counts.update(each.offence for each in new)
        return new
