"""The shares of services' pods: divided among all services, written as grants, and given back."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from milligpu.cluster import resize as resizes
from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadRequest, NoCapacity, Unavailable
from milligpu.model.grant import Grant
from milligpu.scheduler.resizer import Resizer
from milligpu.scheduler.service_calls import ShareCalls
from milligpu.scheduler.service_pods import grant_of, template_grant
from milligpu.scheduler.service_rule import ServiceRule
from milligpu.services.divide import divide

# A quota that counts shares seldom goes away.
_QUOTA_S = 60.0

log = structlog.get_logger()


class ServiceShares:
    """Resizes pods of services."""

    def __init__(
        self, state: ClusterState, resizer: Resizer, now: Callable[[], float], on_freed: Callable[[], None]
    ) -> None:
        """`on_freed` is called when pods gave something back."""
        self._state = state
        self._resizer = resizer
        self._now = now
        self._on_freed = on_freed
        self.calls = ShareCalls(state, now)

    async def share_out(self, rules: list[ServiceRule], clock: float) -> dict[str, ServiceRule]:
        """Give each pod its share; return the pods that a service rules. `clock` is in seconds since 1970."""
        owner = {each.uid: rule for rule in rules for each in rule.pods if each.resizable}
        self._call(rules, owner, clock)
        returning, lending, now = self.calls.returning, self.calls.lending, self._now()
        wants = [want for rule in rules for want in rule.wants(returning=returning, lending=lending, now=now)]
        got = divide(self.free(gpu for each in wants for gpu in each.gpus), wants)
        shrink = [each.uid for each in wants if got[each.uid] < each.present]
        grow = [each.uid for each in wants if got[each.uid] >= each.present]
        await asyncio.gather(*(self._set(owner[uid], uid, got[uid]) for uid in shrink))
        # Nobody else has asked since: what was given is kept for those that it was given for.
        self.calls.hand_over()
        if shrink:
            self._on_freed()
        await asyncio.gather(*(self._set(owner[uid], uid, got[uid]) for uid in grow))
        return owner

    def _call(self, rules: list[ServiceRule], owner: Mapping[str, ServiceRule], clock: float) -> None:
        """See which waiting pods would fit without loans, or if old pods lent to the new ones of their service."""
        borrowers = dict[str, Grant]()
        old_pods = dict[str, dict[str, Grant]]()
        for rule in rules:
            high = rule.spec.share.max
            for pod in rule.pods:
                entry = self._state.entry(pod.uid)
                if entry is not None and pod.uid in owner and pod.present > pod.template:
                    borrowers[pod.uid] = grant_of(entry, pod.template, high)
            for waits in rule.waiting:
                uid = waits.spec.pod.uid
                old = rule.old_pods(uid) if rule.in_time(uid, clock) and not rule.spec.paused else []
                found = {each.uid: self._state.entry(each.uid) for each in old}
                if found:
                    old_pods[uid] = {key: grant_of(each, 0, high) for key, each in found.items() if each}
        self.calls.look(borrowers, old_pods)

    def free(self, gpus: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return what GPUs have free, less what users asked for by resizing pods on them."""
        snap = self._state.placer.snapshot
        free = {gpu: int(snap.milli[snap.cell_of[gpu]]) for gpu in gpus if gpu in snap.cell_of}
        for entry in self._state.pods.resizing.values():
            for gpu, more in self._asked(entry):
                if gpu in free:
                    free[gpu] -= more
        return free

    def _asked(self, entry: PodEntry) -> list[tuple[tuple[str, str], int]]:
        try:
            grant = resizes.wanted_grant(self._state, entry)
        except BadRequest:
            return []
        if grant is None or entry.node not in self._state.placer.snapshot.nodes:
            return []
        now = dict(self._state.shares.holding(entry, entry.grant).demands)
        wanted = self._state.shares.holding(entry, grant).demands
        return [((entry.node, gpu), max(0, each.milli - now[gpu].milli)) for gpu, each in wanted]

    async def _set(self, rule: ServiceRule, uid: str, milli: int) -> None:
        entry = self._state.entry(uid)
        if entry is None or entry.grant is None or entry.stage is not PodStage.BOUND:
            return
        grant = grant_of(entry, milli, rule.spec.share.max)
        if grant is entry.grant:
            return
        try:
            await self._resizer.set_share(entry, grant, rule.spec.name)
        except BadRequest:
            rule.quota_until = self._now() + _QUOTA_S
        except (NoCapacity, Unavailable) as error:
            log.info("Could not resize pod of a service", pod=str(entry.spec.pod), error=error.message)
        else:
            log.info("Resized pod of a service", pod=str(entry.spec.pod), share=resizes.describe_grant(grant))

    async def release_strays(self, owner: Mapping[str, ServiceRule], held: Collection[tuple[str, str]]) -> None:
        """Give pods that no service rules the shares of their templates, as when their service was deleted.

        Pods of the services `held`, which cannot be used now, keep theirs. So does a pod that a user resized.
        """
        for uid, entry in tuple(self._state.pods.in_services.items()):
            if not entry.service and entry.next_grant is None:
                self._state.pods.in_services.pop(uid, None)
                continue
            ruled = uid in owner or (entry.spec.pod.namespace, entry.service) in held
            bound = entry.stage is PodStage.BOUND and entry.grant is not None and entry.next_grant is None
            if ruled or not bound:
                continue
            grant = entry.grant if entry.resize else template_grant(self._state, entry)
            if grant is not None:
                await self._release(entry, grant)

    async def _release(self, entry: PodEntry, grant: Grant) -> None:
        try:
            await self._resizer.set_share(entry, grant, "")
        except (BadRequest, NoCapacity, Unavailable) as error:
            log.info("Could not give share back", pod=str(entry.spec.pod), error=error.message)
        else:
            log.info("Gave share back", pod=str(entry.spec.pod), share=resizes.describe_grant(grant))
            self._on_freed()
