"""Queues: what a `GpuQueue` object says, and the rules that all queues of a cluster keep together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.units import MIB_MAX, Mib, Milli, parse_size, parse_whole, show_mib, show_milli

# A million GPUs, and more than all of them have in memory.
QUOTA_MILLI_MAX = 1_000_000_000
QUOTA_MIB_MAX = 1_000_000 * MIB_MAX
WEIGHT_MAX = 1_000_000
# A pod that nobody may evict for longer than a week holds a guarantee.
MINIMUM_RUNTIME_MAX_S = 7 * 24 * 3600


class QueueOrder(StrEnum):
    """Which user of a queue comes next. Every user's own pods are always taken in their order."""

    FIFO = "fifo"
    """The one whose pod has waited longest."""
    FAIR = "fair"
    """The one who has had least of late."""


@dataclass(frozen=True, slots=True)
class Quota:
    """An amount of GPU; None means that this part of it is not limited."""

    milli: Milli | None = None
    mib: Mib | None = None

    def exceeds(self, other: "Quota") -> bool:
        """Whether any part is above that of the other."""
        parts = ((self.milli, other.milli), (self.mib, other.mib))
        return any(high is not None and (mine is None or mine > high) for mine, high in parts)


NO_QUOTA = Quota(Milli(0), Mib(0))
UNLIMITED = Quota()


@dataclass(frozen=True, slots=True)
class GpuQueue:
    """A line of pods, and what they may have together."""

    name: str
    parent: str = ""
    guarantee: Quota = NO_QUOTA
    """What its pods get before any queue gets more than its own guarantee."""
    ceiling: Quota = UNLIMITED
    """What its pods never exceed."""
    weight: int = 1
    """How much of what nobody has a guarantee for it gets, relative to its siblings."""
    order: QueueOrder = QueueOrder.FAIR
    lends: bool = True
    """Whether others may use what it leaves idle of its guarantee."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose pods go to this queue; with none, pods of every namespace may name it."""
    minimum_runtime_s: int = 0
    """For this long after its start no pod is evicted for another one."""


NO_QUEUE = "(no queue)"
"""Where groups wait whose pods are in no queue. No object can have this name."""


def parse_quota(field: str, value: Mapping[str, object] | None, missing: Quota) -> Quota:
    """Read `{milli: 4000, memory: 160Gi}`; what is left out is as in `missing`."""
    if value is None:
        return missing
    unknown = sorted(value.keys() - {"milli", "memory"})
    if unknown:
        raise BadRequest(f"{field}.{unknown[0]}", value[unknown[0]], "milli or memory")
    milli, memory = value.get("milli"), value.get("memory")
    return Quota(
        missing.milli if milli is None else Milli(parse_whole(f"{field}.milli", milli, 0, QUOTA_MILLI_MAX)),
        missing.mib if memory is None else parse_size(f"{field}.memory", memory, largest=QUOTA_MIB_MAX),
    )


def parse_order(field: str, value: str) -> QueueOrder:
    """Read the order of a queue."""
    if value not in set(QueueOrder):
        raise BadRequest(field, value, " or ".join(QueueOrder))
    return QueueOrder(value)


class GpuQueues:
    """All queues of a cluster: a forest of which the leaves take pods."""

    def __init__(self, queues: Iterable[GpuQueue] = ()) -> None:
        """Refuse queues that contradict each other."""
        self._queues = {each.name: each for each in sorted(queues, key=lambda each: each.name)}
        self._children: dict[str, list[GpuQueue]] = {}
        for each in self:
            self._check(each)
            self._children.setdefault(each.parent, []).append(each)
        for each in self:
            self._check_children(each)
        self._by_namespace = self._namespaces()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GpuQueues) and self._queues == other._queues

    def __hash__(self) -> int:
        return hash(tuple(self._queues.values()))

    def with_queue(self, new: GpuQueue) -> "GpuQueues":
        """These queues and a new one, or a new version of one. Raises `BadRequest` for contradictions."""
        return GpuQueues([*(each for each in self if each.name != new.name), new])

    def __iter__(self) -> Iterator[GpuQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def __getitem__(self, name: str) -> GpuQueue:
        return self._queues[name]

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def children(self, name: str = "") -> tuple[GpuQueue, ...]:
        """The queues right below this one; those without a parent for no name."""
        return tuple(self._children.get(name, ()))

    @property
    def leaves(self) -> tuple[GpuQueue, ...]:
        """The queues that take pods."""
        return tuple(each for each in self if not self.children(each.name))

    def line_of(self, name: str) -> tuple[GpuQueue, ...]:
        """The queue, its parent, and so on to the root."""
        found: list[GpuQueue] = []
        while name:
            found.append(self._queues[name])
            name = found[-1].parent
        return tuple(found)

    def queue_of(self, namespace: str, named: str | None) -> str | None:
        """The queue of a pod that names one, or is in the namespace of one; None if it is in no queue.

        Raises `BadRequest` for a queue that does not exist, takes no pods, or is for other namespaces.
        """
        if named is None:
            return self._by_namespace.get(namespace)
        found = self._queues.get(named)
        if found is None:
            exist = ", ".join(each.name for each in self.leaves) or "none exists"
            raise BadRequest(names.QUEUE, named, f"the name of a GpuQueue; existing queues: {exist}")
        if self.children(named):
            below = ", ".join(each.name for each in self.children(named))
            raise BadRequest(names.QUEUE, named, f"a queue without queues below it, such as {below}")
        if found.namespaces and namespace not in found.namespaces:
            allowed = ", ".join(found.namespaces)
            raise BadRequest(names.QUEUE, named, f"a queue for namespace {namespace}: this one is for {allowed}")
        return named

    def _namespaces(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in self:
            if each.namespaces and self.children(each.name):
                below = ", ".join(child.name for child in self.children(each.name))
                want = f"empty: pods go to the queues below it ({below})"
                raise BadRequest(f"queue {each.name}: spec.namespaces", each.namespaces[0], want)
            for namespace in each.namespaces:
                other = found.setdefault(namespace, each.name)
                if other != each.name:
                    want = f"a namespace of one queue only: it is one of {other}"
                    raise BadRequest(f"queue {each.name}: spec.namespaces", namespace, want)
        return found

    def _check(self, queue: GpuQueue) -> None:
        if queue.parent and queue.parent not in self._queues:
            raise BadRequest(f"queue {queue.name}: spec.parent", queue.parent, "the name of a GpuQueue")
        way = [queue.name]
        while (parent := self._queues[way[-1]].parent) and parent in self._queues:
            way.append(parent)
            if parent in way[:-1]:
                want = f"a queue that is not below {queue.name}: {' -> '.join(way)}"
                raise BadRequest(f"queue {queue.name}: spec.parent", queue.parent, want)
        if queue.guarantee.exceeds(queue.ceiling):
            raise BadRequest(f"queue {queue.name}: spec.guarantee", _shown(queue.guarantee), _below(queue.ceiling))

    def _check_children(self, queue: GpuQueue) -> None:
        children = self.children(queue.name)
        if not children:
            return
        together = _sum([each.guarantee for each in children])
        if together.exceeds(queue.guarantee):
            want = f"{_below(queue.guarantee)}, the guarantee of {queue.name}"
            names = ", ".join(each.name for each in children)
            raise BadRequest(f"queues {names}: spec.guarantee", f"{_shown(together)} together", want)
        for each in children:
            if each.ceiling != UNLIMITED and each.ceiling.exceeds(queue.ceiling):
                want = f"{_below(queue.ceiling)}, the ceiling of {queue.name}"
                raise BadRequest(f"queue {each.name}: spec.ceiling", _shown(each.ceiling), want)


def _sum(quotas: Sequence[Quota]) -> Quota:
    """All of them together; without a limit if one of them has none."""
    milli = [each.milli for each in quotas if each.milli is not None]
    mib = [each.mib for each in quotas if each.mib is not None]
    return Quota(
        Milli(sum(milli)) if len(milli) == len(quotas) else None,
        Mib(sum(mib)) if len(mib) == len(quotas) else None,
    )


def _below(quota: Quota) -> str:
    return f"at most {_shown(quota)}"


def _shown(quota: Quota) -> str:
    parts = [
        f"{show_milli(quota.milli)} GPU" if quota.milli is not None else "",
        show_mib(quota.mib) if quota.mib else "",
    ]
    return " with ".join(part for part in parts if part) or "unlimited"


def usable_queues(queues: Iterable[GpuQueue]) -> tuple[GpuQueues, dict[str, str]]:
    """All queues that do not contradict others, and what is wrong with the rest, by name.

    Admission refuses contradictions, but two queues may be created at the same moment, or a parent deleted.
    """
    every = sorted(queues, key=lambda each: each.name)
    try:
        return GpuQueues(every), {}
    except BadRequest:
        pass
    accepted, problems = list[GpuQueue](), dict[str, str]()
    rest = every
    while rest:
        problems, again = {}, list[GpuQueue]()
        for each in rest:
            try:
                GpuQueues([*accepted, each])
            except BadRequest as error:
                problems[each.name] = error.message
                again.append(each)
            else:
                accepted.append(each)
        if len(again) == len(rest):
            break
        rest = again
    return GpuQueues(accepted), problems


NO_QUEUES = GpuQueues()
