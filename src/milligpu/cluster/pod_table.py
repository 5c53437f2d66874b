"""All pods of the cluster state by uid, in the order in which they were first seen."""

from collections.abc import Callable, Iterator, Set
from itertools import count

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import FOREVER, PodEntry, PodStage
from milligpu.model.group import GroupKey


class PodTable:
    """The entries of all pods, and counters by which others see that something changed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._entries: dict[str, PodEntry] = {}
        self._waiting: dict[str, PodEntry] = {}
        self._numbers = count(1)
        self._list_began = 0
        self.resizing: dict[str, PodEntry] = {}
        """Bound pods whose share may change: those with a resize annotation or a floor."""
        self.leaving: dict[str, PodEntry] = {}
        """Bound pods that are being deleted."""
        self.in_services: dict[str, PodEntry] = {}
        """Bound pods whose shares a GpuService set, or had set."""
        self.in_queues: dict[str, PodEntry] = {}
        """Pods of queues and of groups: waiting, admitted and bound."""
        self._succeeded: dict[GroupKey, dict[str, float]] = {}
        """Pods of groups that have succeeded and still exist, and when they did."""
        self._group_of: dict[str, GroupKey] = {}
        self.last_asked = (0, -FOREVER)
        """The number of the newest pod that kube-scheduler has asked about, and when."""
        self.capacity_version = 0
        """Increases whenever something may fit that did not fit before."""
        self.waiting_version = 0
        """Increases whenever a pod begins to wait, or waits for something else."""

    def __iter__(self) -> Iterator[PodEntry]:
        return iter(tuple(self._entries.values()))

    def __getitem__(self, uid: str) -> PodEntry:
        return self._entries[uid]

    def get(self, uid: str) -> PodEntry | None:
        return self._entries.get(uid)

    def waiting(self) -> list[PodEntry]:
        """Return the pods that want GPUs and hold none, in the order in which they were first seen."""
        return list(self._waiting.values())

    def in_stage(self, stage: PodStage) -> list[PodEntry]:
        return [each for each in self._entries.values() if each.stage is stage]

    def add(self, spec: SchedulingSpec) -> PodEntry:
        """Add a pod, which waits."""
        entry = PodEntry(spec, self.now(), next(self._numbers))
        self._entries[spec.pod.uid] = self._waiting[spec.pod.uid] = entry
        if spec.takes_turns:
            self.in_queues[spec.pod.uid] = entry
        return entry

    def remove(self, uid: str) -> None:
        del self._entries[uid]
        self._waiting.pop(uid, None)
        self.in_queues.pop(uid, None)
        self.resizing.pop(uid, None)
        self.leaving.pop(uid, None)
        self.in_services.pop(uid, None)

    def note_succeeded(self, uid: str, group: GroupKey, at: float) -> None:
        """Keep in mind that a pod of a group has succeeded, until it is forgotten."""
        self._group_of[uid] = group
        self._succeeded.setdefault(group, {})[uid] = at

    def forget_succeeded(self, uid: str) -> None:
        """Forget a pod that succeeded, because it was deleted."""
        group = self._group_of.pop(uid, None)
        if group is not None:
            del self._succeeded[group][uid]
            if not self._succeeded[group]:
                del self._succeeded[group]

    def succeeded_since(self, group: GroupKey, created: float) -> int:
        """Count the pods of a group that succeeded after another one was created: it started with them, or late."""
        return sum(at >= created for at in self._succeeded.get(group, {}).values())

    def set_waiting(self, entry: PodEntry) -> None:
        """Count the pod among those that wait, as the last of them."""
        self._waiting[entry.spec.pod.uid] = entry

    def set_placed(self, entry: PodEntry) -> None:
        """Count the pod no longer among those that wait."""
        self._waiting.pop(entry.spec.pod.uid, None)

    def note_asked(self, entry: PodEntry) -> None:
        """Note that kube-scheduler asks about the pod."""
        if entry.number > self.last_asked[0]:
            self.last_asked = entry.number, self.now()

    # -- lists -------------------------------------------------------------------------------------------------

    def begin_list(self) -> None:
        """Note that pods are being listed: what becomes known from now on need not be in the list."""
        self._list_began = next(self._numbers)

    def missing_from(self, listed: Set[str]) -> list[str]:
        """Return the pods that were known before the list began and are not in it: they are gone."""
        missing = [
            uid
            for uid, entry in self._entries.items()
            if entry.seen and entry.number < self._list_began and uid not in listed
        ]
        # What has succeeded needs no care: it holds nothing, and the watch shows it again.
        return missing + [uid for uid in self._group_of if uid not in listed]
