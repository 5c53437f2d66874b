"""Compares what the driver counts for each process with grants and usage pages. Pure.

A process can go around the limits library (open the driver by its path, link statically, use raw ioctls), and a
tenant can corrupt its own usage page. Neither changes the driver's own count. `audit` compares once; `Auditor`
reports what was found twice in a row, because the two counts are never taken at the same moment.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from milligpu.model.overheads import SLACK_USUAL
from milligpu.model.reasons import ViolationKind
from milligpu.model.units import BYTES_PER_MIB, WHOLE
from milligpu.nvml.readings import GpuProcess
from milligpu.wire.status import Violation

# NVML's utilization is rounded, sampled, and of another moment than the limit's window.
_SLACK = 0.15


@dataclass(frozen=True, slots=True)
class AuditedShare:
    """What a tenant may use of one GPU, and what its usage page says."""

    tenant: str
    gpu: str
    mib: int
    limit: int
    used_mib: float | None
    """By the usage page; None when that is corrupt."""
    pids: frozenset[int]
    """The processes on the usage page."""
    slack_mib: float = SLACK_USUAL / BYTES_PER_MIB
    """What the driver may count for each process beyond the usage page: streams, code, alignment."""


def audit(
    processes: Sequence[GpuProcess], shares: Sequence[AuditedShare], tenant_of: Mapping[int, str]
) -> list[Violation]:
    """List all violations; `tenant_of` has the tenant in which a process was started, by pid.

    A tenant with whole GPUs has no usage page, so there is nothing to compare.
    """
    found: list[Violation] = []
    by_place = {(each.tenant, each.gpu): each for each in shares}
    owners = dict(tenant_of) | {pid: each.tenant for each in shares for pid in each.pids}
    groups: dict[tuple[str, str], list[GpuProcess]] = {}
    for each in processes:
        tenant = owners.get(each.pid)
        if tenant is None:
            message = f"process {each.pid} uses {_mib(each.memory)} and belongs to no tenant"
            found.append(Violation(ViolationKind.UNKNOWN_PROCESS, each.gpu, None, each.pid, message))
        elif (tenant, each.gpu) in by_place:
            groups.setdefault((tenant, each.gpu), []).append(each)
            if each.pid not in by_place[tenant, each.gpu].pids:
                message = f"process {each.pid} uses {_mib(each.memory)} and is not on its tenant's usage page"
                found.append(Violation(ViolationKind.BYPASS, each.gpu, tenant, each.pid, message))
    for place, group in groups.items():
        found += _compare_sums(by_place[place], group)
    return found


def _compare_sums(share: AuditedShare, processes: Sequence[GpuProcess]) -> Iterable[Violation]:
    used = sum(each.memory or 0 for each in processes)
    busy = sum(each.utilization or 0.0 for each in processes)
    slack = share.slack_mib * len(processes)

    def violation(kind: ViolationKind, message: str) -> Violation:
        return Violation(kind, share.gpu, share.tenant, None, message)

    if used > share.mib + slack:
        yield violation(
            ViolationKind.OVER_MEMORY, f"the driver counts {_mib(used)}, the memory limit is {share.mib} MiB"
        )
    elif share.used_mib is None or used > share.used_mib + slack:
        yield violation(
            ViolationKind.WRONG_USAGE_PAGE,
            f"the driver counts {_mib(used)}, the usage page says {_mib(share.used_mib)}",
        )
    if busy > share.limit / WHOLE + _SLACK:
        yield violation(
            ViolationKind.OVER_COMPUTE,
            f"the driver counts {100 * busy:.0f} % of the GPU, the limit is {share.limit / 10:.0f} %",
        )


def _mib(amount: float | None) -> str:
    return "an unknown amount" if amount is None else f"{amount:.0f} MiB"


class Auditor:
    """Confirms violations that were found twice in a row, and reports each once."""

    def __init__(self) -> None:
        self._last: set[tuple[ViolationKind, str, str | None, int | None]] = set()
        self._known: set[tuple[ViolationKind, str, str | None, int | None]] = set()
        self.current: list[Violation] = []
        """Confirmed, and still there."""
        self.counts: Counter[ViolationKind] = Counter()
        """All that were ever confirmed."""

    def confirm(self, found: Sequence[Violation]) -> list[Violation]:
        """Compare with what was found last time; returns those that are newly confirmed."""
        self.current = [each for each in found if each.key in self._last]
        self._last = {each.key for each in found}
        new = [each for each in self.current if each.key not in self._known]
        self._known = {each.key for each in self.current}
        self.counts.update(each.kind for each in new)
        return new
