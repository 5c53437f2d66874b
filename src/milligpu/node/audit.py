"""Who uses a card of this node without a share of it, or beyond its share: log, metric, and an event on the pod.

Whose a process is, is the kernel's word: its control group names the pod, and among several containers of one pod
the tenant's folder that is mounted in it names the container. Neither can be changed from inside a container.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from milligpu.agent.audit import Auditor, Finding, Granted, Seen, audit
from milligpu.agent.processes import start_time
from milligpu.devices.reading import Reading
from milligpu.kube.api import Api
from milligpu.kube.events import pod_event
from milligpu.model.errors import Unavailable
from milligpu.node.attach import Attached, PodView
from milligpu.node.attachments import Attachments, is_whole, shares
from milligpu.node.cards import CardWatch
from milligpu.node.processes import pod_of_process
from milligpu.wire.usage import UsagePage

# Reading eight cards takes 7 ms; so often it is below a thousandth of one core.
AUDIT_S = 10.0
REASON = "OutsideShare"
_MIB = 1 << 20
_PROC = Path("/proc")
# The fourth field of a mount is its root: which folder of the node it shows.
_MOUNTED = re.compile(r"^\d+ \d+ \S+ \S*/([0-9a-f]+)/tenant /", re.M)
_NS_PID = re.compile(r"^NSpid:.*\s(\d+)$", re.M)

log = structlog.get_logger()


class NodeAudit:
    """Compares what the driver counts for each process with what its container was given."""

    def __init__(
        self, api: Api, node: str, cards: CardWatch, attachments: Attachments, elsewhere: Callable[[int], bool]
    ) -> None:
        """`elsewhere` says of a process that somebody else looks after it, as after commands on the node."""
        self._api = api
        self._reporter = ("milligpu.dev/agent", node)
        self._cards = cards
        self._attachments = attachments
        self._elsewhere = elsewhere
        self._auditor = Auditor()
        self._counts: Counter[tuple[str, str]] = Counter()

    def counts(self, gpu: str) -> dict[str, int]:
        """How often somebody was found on this card since the agent started, by offence."""
        return {offence: count for (where, offence), count in self._counts.items() if where == gpu}

    async def look(self, pods: Mapping[str, PodView]) -> None:
        """Look once; who is outside in two looks is reported."""
        await self._cards.read()
        found = [each for reading in self._cards.readings.values() for each in self._card(reading)]
        for finding in self._auditor.look(found):
            self._counts[finding.gpu, str(finding.offence)] += 1
            await self._report(finding, pods)

    def _card(self, reading: Reading) -> list[Finding]:
        """Card by card: a share of one is no right to another."""
        here = [each for each in self._attachments.held.values() if _has(each, reading.uuid)]
        seen = [
            Seen(reading.uuid, each.pid, each.memory, None if each.utilisation is None else each.utilisation * 10)
            for each in reading.processes
            if not self._elsewhere(each.pid)
        ]
        owners = {each.pid: owner.name for each in seen if (owner := owner_of(each.pid, here))}
        granted = [
            self._granted(each, reading.uuid, [pid for pid, name in owners.items() if name == each.name])
            for each in here
            if each.name in owners.values() and not is_whole(each)
        ]
        return audit(seen, granted, owners)

    def _granted(self, attached: Attached, gpu: str, pids: Iterable[int]) -> Granted:
        at = next(number for number, share in enumerate(shares(attached)) if share.gpu == gpu)
        share, page = shares(attached)[at], self._attachments.tenant(attached.name).usage()
        account = page.accounts[at].used / _MIB if page and at < len(page.accounts) else None
        return Granted(attached.name, gpu, share.mib, share.limit, account, _accounted(page, pids))

    async def _report(self, finding: Finding, pods: Mapping[str, PodView]) -> None:
        pod = pods.get(self._uid(finding) or "")
        where = f"{pod.namespace}/{pod.name}" if pod else "no pod"
        log.warning("audit", offence=str(finding.offence), gpu=finding.gpu, pod=where, detail=finding.detail)
        if pod is not None:
            note = f"{finding.offence} on GPU {finding.gpu}: {finding.detail}"
            path, body = pod_event(
                (pod.namespace, pod.name, pod.uid), REASON, "Audit", note, reporter=self._reporter
            )
            try:
                await self._api.send("POST", path, body)
            except Unavailable as error:
                log.info("the API server did not take it", error=error.message)

    def _uid(self, finding: Finding) -> str | None:
        held = self._attachments.held.get(finding.session or "")
        if held is not None:
            return held.tenancy.uid
        return None if finding.pid is None else pod_of_process(finding.pid)


def owner_of(pid: int, here: Iterable[Attached], proc: Path = _PROC) -> Attached | None:
    """Which of those who hold a card a process belongs to."""
    uid = pod_of_process(pid, proc)
    mine = [each for each in here if each.tenancy.uid == uid]
    if len(mine) <= 1:
        return mine[0] if mine else None
    mounted = _MOUNTED.findall(_text(proc / str(pid) / "mountinfo"))
    return next((each for each in mine if each.name in mounted), None)


def _accounted(page: UsagePage | None, pids: Iterable[int]) -> frozenset[int]:
    """Those that the account has, which knows them by their number inside the container."""
    known = {(slot.pid, slot.started) for slot in page.processes} if page else set[tuple[int, int]]()
    return frozenset(pid for pid in pids if (inner_pid(pid), start_time(pid)) in known)


def inner_pid(pid: int, proc: Path = _PROC) -> int | None:
    """A process's number in its own namespace."""
    match = _NS_PID.search(_text(proc / str(pid) / "status"))
    return int(match[1]) if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _has(attached: Attached, gpu: str) -> bool:
    return any(share.gpu == gpu for share in shares(attached))
