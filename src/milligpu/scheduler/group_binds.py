"""Binds of groups: enough pods of a group are bound together, or none.

kube-scheduler binds one pod after the other, and may still reject some of a group for a reason of its own. So the
bind of each waits until enough of the others have come as far. Then all of them begin in one step.
"""

import asyncio
from dataclasses import dataclass

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import NoCapacity
from milligpu.model.grant import Grant
from milligpu.model.group import GroupKey

# kube-scheduler gives up on a bind after 5 s. It tries again, while the places of the group are kept.
WAIT_S = 4.0
_BINDING = frozenset({PodStage.BINDING, PodStage.BIND_UNKNOWN, PodStage.BOUND})


@dataclass(frozen=True, slots=True)
class _Asking:
    spec: SchedulingSpec
    node: str
    grant: "asyncio.Future[Grant | None]"


class GroupBinds:
    """The pods of groups whose bind waits for others."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._asking: dict[GroupKey, dict[str, _Asking]] = {}

    async def begin(self, spec: SchedulingSpec, node: str) -> Grant | None:
        """Begin a bind, as `PendingBinds.begin`; that of a pod of a group together with the others' binds.

        Raises `NoCapacity` if they do not come, or if one of them has no room.
        """
        key = spec.group_key
        if key is None or spec.group is None:
            return self._state.binds.begin(spec, node)
        asking = self._asking.setdefault(key, {})
        mine = asking[spec.pod.uid] = _Asking(spec, node, asyncio.get_running_loop().create_future())
        try:
            pods = [each for each in asking.values() if not each.grant.done()]
            if self._started(key, spec.pod.uid) + len(pods) >= spec.group.min_count:
                self._begin_all(pods)
            async with asyncio.timeout(WAIT_S):
                return await mine.grant
        except TimeoutError:
            raise NoCapacity(f"pod {spec.pod} waits for other pods of group {spec.group.name}") from None
        finally:
            if asking.get(spec.pod.uid) is mine:
                del asking[spec.pod.uid]
            if not asking and self._asking.get(key) is asking:
                del self._asking[key]

    def _started(self, key: GroupKey, uid: str) -> int:
        """Count the pods that are bound, or ended well while this one waited."""
        pods, entry = self._state.pods, self._state.entry(uid)
        bound = sum(each.stage in _BINDING for each in pods.in_queues.values() if each.spec.group_key == key)
        return bound + (0 if entry is None else pods.succeeded_since(key, entry.created))

    def _begin_all(self, pods: list[_Asking]) -> None:
        """Begin all of these binds, or none."""
        begun: dict[str, Grant | None] = {}
        try:
            for each in pods:
                begun[each.spec.pod.uid] = self._state.binds.begin(each.spec, each.node)
        except NoCapacity as error:
            for uid in begun:
                self._state.binds.end(uid, bound=False)
            for each in pods:
                each.grant.set_exception(NoCapacity(f"group of pod {each.spec.pod}: {error.message}"))
            return
        for each in pods:
            each.grant.set_result(begun[each.spec.pod.uid])
