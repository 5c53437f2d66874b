"""Bring the node in step with the plan: look, decide, do; after every event, and once a second while unsure."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import structlog

from milligpu.kubelet.checkpoint import read_checkpoint
from milligpu.kubelet.pod_resources import PodResources
from milligpu.model.errors import MilligpuError, Unavailable
from milligpu.model.units import Mib
from milligpu.node.attach import Attached, Plan, View, plan
from milligpu.node.attachments import Attachments, shares
from milligpu.node.beyond import used_by_resized
from milligpu.node.cards import CardWatch
from milligpu.node.checks import Here
from milligpu.node.complaints import Complaints
from milligpu.node.holders import Holder, by_record, by_slots
from milligpu.node.leases import Leases
from milligpu.node.ledger import Allocation, Ledger
from milligpu.node.pods import NodePods
from milligpu.node.processes import pods_running
from milligpu.node.settings import Settings

# The kubelet knows the holder a few milliseconds after Allocate; a container is created about 100 ms later.
_SOON_S = 0.002
_SOON_MOST_S = 0.05
# For so many looks; on a node that is busy beyond reason the kubelet takes seconds.
_SOON_TRIES = 200
_UNSURE_S = 1.0
_SURE_S = 10.0
# A promise that the kubelet has no record of after so long belongs to a pod that it did not admit in the end.
_UNCLAIMED_S = 60.0

log = structlog.get_logger()


class Reconciler:
    """Owns the ledger and the attachments."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        attachments: Attachments,
        *,
        pods: NodePods,
        cards: CardWatch,
        leases: Leases,
        complaints: Complaints,
        changed: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """`changed` is called when what is held has changed."""
        self._settings = settings
        self._ledger = ledger
        self._attachments = attachments
        self._resources = PodResources(settings.pod_resources)
        self._pods = pods
        self._cards = cards
        self._leases = leases
        self._complaints = complaints
        self._changed = changed
        self._now = now
        self._wake = asyncio.Event()
        self._tries = 0
        self._holders = {name: Holder(each.tenancy.uid, each.container) for name, each in attachments.held.items()}
        self._unclaimed: dict[str, float] = {}

    def wake(self) -> None:
        """Something happened."""
        self._tries = 0
        self._wake.set()

    async def allocate(self, resource: str, slots: Sequence[str]) -> str:
        """Answer the kubelet with a name that nobody knows yet."""
        entry = self._ledger.promise(resource, slots)
        self.wake()
        return entry.device

    async def run(self) -> None:
        """Until cancelled. Containers that have all they need start without us, so nothing here may stop it."""
        while True:
            self._wake.clear()
            wait_s = _UNSURE_S
            try:
                wait_s = await self._once()
            except (MilligpuError, OSError) as error:
                log.warning("could not bring the node in step", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def recover(self) -> None:
        """Take over what an agent before this one left: containers wait for their turns."""
        self._attachments.restore()
        for each in self._attachments.held.values():
            self._leases.add(each, self._attachments)

    async def _once(self) -> float:
        """One look; how long until the next one is due by itself."""
        await self._find_holders()
        unknown = self._uids() - self._pods.watched.keys()
        certain = await self._pods.look(unknown)
        held = [each.tenancy for each in self._attachments.held.values()]
        view = self._view(unknown, certain, await used_by_resized(self._cards, held))
        todo = plan(view)
        self._do(todo)
        self._complaints.note(todo.refused, self._pods.known)
        missing = [entry for entry in self._ledger.entries if entry.name not in self._holders]
        if missing and self._tries < _SOON_TRIES:
            self._tries += 1
            return min(_SOON_S * 2 ** min(self._tries, 10), _SOON_MOST_S)
        return _UNSURE_S if missing or todo.refused or todo.held_back or unknown else _SURE_S

    def _view(self, unknown: set[str], certain: bool, used: Mapping[tuple[str, str], Mib]) -> View:
        pods = self._pods.known
        doubtful = {uid for uid in self._uids() if uid not in pods or pods[uid].finished}
        running = pods_running() & doubtful if doubtful else frozenset[str]()
        return View(
            promised=self._ledger.entries,
            holders=self._holders,
            pods=pods,
            attached=self._attachments.held,
            # Without the API server's word nobody is gone.
            running=running if certain else running | unknown,
            here=Here(self._settings.node, self._cards.gpus, used),
        )

    def _uids(self) -> set[str]:
        return {holder.uid for holder in self._holders.values()}

    async def _find_holders(self) -> None:
        open_ones = [entry for entry in self._ledger.entries if entry.name not in self._holders]
        if not open_ones:
            self._unclaimed.clear()
            return
        recorded = read_checkpoint(self._settings.device_plugins)
        self._holders |= by_record(open_ones, recorded or ())
        left = [entry for entry in open_ones if entry.name not in self._holders]
        if left and recorded is None:
            try:
                self._holders |= by_slots(left, await self._resources.held(), self._pods.by_name())
            except Unavailable as error:
                log.info("the kubelet does not say who holds what", error=error.message)
        left = [entry for entry in left if entry.name not in self._holders]
        self._forget_unclaimed(left, certain=recorded is not None)

    def _forget_unclaimed(self, left: Sequence[Allocation], *, certain: bool) -> None:
        now = self._now()
        self._unclaimed = {entry.name: self._unclaimed.get(entry.name, now) for entry in left}
        for name, since in self._unclaimed.items():
            if certain and now - since >= _UNCLAIMED_S:
                self._ledger.forget(name)
                self._changed()

    def _do(self, todo: Plan) -> None:
        for name in todo.detach:
            self._leases.remove(name)
            self._attachments.detach(name)
            self._ledger.forget(name)
            self._holders.pop(name, None)
            log.info("detached", name=name)
        for each in todo.resize:
            self._attachments.resize(each)
            log.info("resized", pod=each.tenancy.uid, container=each.container)
        for each in todo.attach:
            self._attachments.attach(each)
            self._leases.add(each, self._attachments)
            log.info("attached", pod=each.tenancy.uid, container=each.container, shares=_words(each))
        if todo.resize:
            self._wake.set()  # what was given back may be enough for somebody who waits
        if todo.detach or todo.attach or todo.resize:
            self._changed()


def _words(attached: Attached) -> str:
    return ", ".join(
        f"{share.gpu} whole" if share.whole else f"{share.gpu} {share.milli} milli {share.mib} MiB"
        for share in shares(attached)
    )
