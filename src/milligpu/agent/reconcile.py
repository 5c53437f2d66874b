"""Carries out the attach plan: after every event, and once a second while something is not certain."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from milligpu.agent.allocations import AllocationStore
from milligpu.agent.attach_plan import AttachInput, AttachPlan, plan_attachments
from milligpu.agent.attachment import Allocation, Attachment
from milligpu.agent.attachments import AttachmentStore
from milligpu.agent.device_owners import owners_from_checkpoint, owners_from_pod_resources
from milligpu.agent.gpus import GpuWatch
from milligpu.agent.grant_check import NodeGpus
from milligpu.agent.pod_processes import pods_running
from milligpu.agent.pods import NodePods
from milligpu.agent.refusals import RefusalReporter
from milligpu.agent.settings import AgentSettings
from milligpu.kubelet.checkpoint import read_checkpoint
from milligpu.kubelet.pod_resources import PodResources
from milligpu.model.errors import MilligpuError, Unavailable
from milligpu.model.units import Mib
from milligpu.wait import wait_for_event

# The kubelet knows the holder a few milliseconds after Allocate; a container is created about 100 ms later.
_SOON_S = 0.002
_SOON_MOST_S = 0.05
# This many tries; on a very busy node the kubelet takes seconds.
_SOON_TRIES = 200
_UNSURE_S = 1.0
_SURE_S = 10.0
# An allocation that the kubelet has not recorded by then belongs to a pod that it did not admit.
_UNCLAIMED_S = 60.0

log = structlog.get_logger()


class Reconciler:
    """Owns the allocation store and the attachments."""

    def __init__(
        self,
        settings: AgentSettings,
        allocations: AllocationStore,
        attachments: AttachmentStore,
        *,
        pods: NodePods,
        gpus: GpuWatch,
        refusals: RefusalReporter,
        changed: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """`changed` is called when attachments or allocations changed."""
        self._settings = settings
        self._allocations = allocations
        self._attachments = attachments
        self._resources = PodResources(settings.pod_resources)
        self._pods = pods
        self._gpus = gpus
        self._refusals = refusals
        self._changed = changed
        self._now = now
        self._wake = asyncio.Event()
        self._tries = 0
        self._holders = {name: each.holder for name, each in attachments.held.items()}
        self._unclaimed: dict[str, float] = {}

    def wake(self) -> None:
        """Reconcile now, because something changed."""
        self._tries = 0
        self._wake.set()

    async def allocate(self, resource: str, slots: Sequence[str]) -> str:
        """Answer the kubelet with a new CDI name, whose file does not exist yet."""
        entry = self._allocations.add(resource, slots)
        self.wake()
        return entry.device

    async def run(self) -> None:
        """Reconcile until cancelled. Errors are logged and retried: containers that wait depend on this loop."""
        while True:
            self._wake.clear()
            wait_s = _UNSURE_S
            try:
                wait_s = await self._once()
            except (MilligpuError, OSError) as error:
                log.warning("Could not reconcile attachments", error=str(error))
            await wait_for_event(self._wake, wait_s)

    def recover(self) -> None:
        """Take over what the previous agent left: running containers wait for the arbiter."""
        problem = self._attachments.refresh_driver()
        self._attachments.restore(driver_ready=not problem)

    async def _once(self) -> float:
        """Reconcile once; return the seconds until the next time."""
        await self._find_holders()
        unknown = self.holders() - self._pods.watched.keys()
        certain = await self._pods.look(unknown)
        used = await self._gpus.memory_by_pod(self._attachments.held.values())
        problem = await self._driver_problem()
        view = self._view(unknown, certain, used, problem)
        todo = plan_attachments(view)
        self._do(todo)
        self._refusals.update(todo.refused, self._pods.known)
        missing = [entry for entry in self._allocations.entries if entry.name not in self._holders]
        if missing and self._tries < _SOON_TRIES:
            self._tries += 1
            return min(_SOON_S * 2 ** min(self._tries, 10), _SOON_MOST_S)
        return _UNSURE_S if missing or todo.refused or todo.held_back or unknown else _SURE_S

    async def _driver_problem(self) -> str:
        """Return why no container can be attached now; asked only when one is to be attached."""
        held, unwritten = self._attachments.held, self._attachments.unwritten
        if not unwritten and all(entry.name in held for entry in self._allocations.entries):
            return ""
        problem = await asyncio.to_thread(self._attachments.refresh_driver)
        if not problem:
            self._attachments.write_cdi_files()
        return problem

    def _view(
        self, unknown: set[str], certain: bool, used: Mapping[tuple[str, str], Mib], problem: str
    ) -> AttachInput:
        pods = self._pods.known
        doubtful = {uid for uid in self.holders() if uid not in pods or pods[uid].finished}
        running = pods_running() & doubtful if doubtful else frozenset[str]()
        return AttachInput(
            allocations=self._allocations.entries,
            holders=self._holders,
            pods=pods,
            attached=self._attachments.held,
            # While the API server does not answer, no pod counts as gone.
            running=running if certain else running | unknown,
            here=NodeGpus(self._settings.node, self._gpus.gpus, used),
            newer=self._attachments.newer,
            driver_problem=problem,
        )

    async def kubelet_answers(self) -> bool:
        try:
            await self._resources.held()
        except Unavailable:
            return False
        return True

    def holders(self) -> set[str]:
        """The UIDs of the pods that have a share here."""
        return {holder.uid for holder in self._holders.values()}

    async def _find_holders(self) -> None:
        open_ones = [entry for entry in self._allocations.entries if entry.name not in self._holders]
        if not open_ones:
            self._unclaimed.clear()
            return
        recorded = read_checkpoint(self._settings.device_plugins)
        self._holders |= owners_from_checkpoint(open_ones, recorded or ())
        left = [entry for entry in open_ones if entry.name not in self._holders]
        if left and recorded is None:
            try:
                self._holders |= owners_from_pod_resources(left, await self._resources.held(), self._pods.by_name())
            except Unavailable as error:
                log.info("Could not list pod resources from the kubelet", error=error.message)
        left = [entry for entry in left if entry.name not in self._holders]
        self._forget_unclaimed(left, certain=recorded is not None)

    def _forget_unclaimed(self, left: Sequence[Allocation], *, certain: bool) -> None:
        now = self._now()
        self._unclaimed = {entry.name: self._unclaimed.get(entry.name, now) for entry in left}
        for name, since in self._unclaimed.items():
            if certain and now - since >= _UNCLAIMED_S:
                self._allocations.remove(name)
                if name in self._attachments.newer:
                    self._attachments.detach(name)  # the kubelet forgets a container only after it ended
                self._changed()

    def _do(self, todo: AttachPlan) -> None:
        for name in todo.detach:
            self._attachments.detach(name)
            self._allocations.remove(name)
            self._holders.pop(name, None)
            log.info("Detached container", name=name)
        for each in todo.resize:
            self._attachments.resize(each)
            log.info("Resized container", container=str(each.holder))
        for each in todo.attach:
            self._attachments.attach(each)
            log.info("Attached container", container=str(each.holder), shares=_words(each))
            pod = self._pods.known.get(each.holder.uid)
            if pod is not None:
                self._refusals.report_capabilities(each, pod)
        if todo.resize:
            self._wake.set()  # a container that waits may fit now
        if todo.detach or todo.attach or todo.resize:
            self._changed()


def _words(attached: Attachment) -> str:
    return ", ".join(
        f"{held.gpu} whole" if held.share.whole else f"{held.gpu} {held.share.milli} milli {held.share.mib} MiB"
        for held in attached.shares
    )
