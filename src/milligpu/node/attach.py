"""Who gets attached to what: from what is promised, known and running to what is to be done now. Pure.

It is asked again after every event and always looks at everything, so it does not matter which event was missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from milligpu.model.errors import MilligpuError
from milligpu.model.grant import Grant
from milligpu.model.request import Kind
from milligpu.node.checks import Fault, Here, Problem, Tenancy, check, check_resize
from milligpu.node.holders import Holder
from milligpu.node.ledger import Allocation
from milligpu.wire.grant import decode_grant


@dataclass(frozen=True, slots=True)
class PodView:
    """What matters here about a pod of this node, as the API server has it."""

    uid: str
    namespace: str
    name: str
    kinds: Mapping[str, Kind] = field(hash=False)
    """Its containers, in the order in which they start."""
    grant: str | None = None
    finished: bool = False
    """Succeeded or failed: it will not start a container again."""
    owned: bool = False
    """A controller will make another one in its place."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A container that has its file: what it holds until its processes are gone, whatever became of its pod."""

    name: str
    container: str
    tenancy: Tenancy


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the plan depends on."""

    promised: Sequence[Allocation]
    holders: Mapping[str, Holder]
    """By the allocation's name; who is not there is not known yet."""
    pods: Mapping[str, PodView]
    """By uid."""
    attached: Mapping[str, Attached]
    """By the allocation's name."""
    running: frozenset[str]
    """Uids of pods that still have processes here."""
    here: Here


@dataclass(frozen=True, slots=True)
class Refused:
    """A container that cannot start now, and why."""

    name: str
    holder: Holder
    problem: Problem


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do; doing it twice does no harm."""

    attach: tuple[Attached, ...]
    detach: tuple[str, ...]
    """Names of allocations whose container will not come back."""
    refused: tuple[Refused, ...]
    resize: tuple[Attached, ...] = ()
    """Running containers whose pod has a later grant."""
    held_back: tuple[str, ...] = ()
    """Those whose later grant does not fit yet."""


def plan(view: View) -> Plan:
    """Decide in the order in which the kubelet asked, so that of two who do not fit the first one wins."""
    gone = tuple(name for name in view.holders if _is_gone(view, name))
    standing = {name: each for name, each in view.attached.items() if name not in gone}
    resized, held_back = _resized(view, standing)
    # What somebody gives back counts as his until it was seen how much of it he uses.
    before = [each.tenancy for each in standing.values()]
    standing |= {each.name: each for each in resized}
    refused: list[Refused] = []
    fresh: list[Attached] = []
    for promise in sorted(view.promised, key=lambda each: each.number):
        holder = view.holders.get(promise.name)
        if holder is None or promise.name in standing or promise.name in gone:
            continue
        decided = _decide(view, promise.name, holder, [*before, *(each.tenancy for each in standing.values())])
        if isinstance(decided, Attached):
            standing[promise.name] = decided
            fresh.append(decided)
        else:
            refused.append(Refused(promise.name, holder, decided))
    return Plan(tuple(fresh), gone, tuple(refused), resized, held_back)


def _resized(view: View, standing: Mapping[str, Attached]) -> tuple[tuple[Attached, ...], tuple[str, ...]]:
    """Later generations of grants, where they fit, and the names of those that are left as they are until then."""
    found: dict[str, Attached] = {}
    held_back: list[str] = []
    for each in standing.values():
        later = _later(view, each)
        others = [one.tenancy for one in (*standing.values(), *found.values())]
        if later is not None and check_resize(later.tenancy, later.container, view.here, others) is None:
            found[each.name] = later
        elif later is not None:
            held_back.append(each.name)
    return tuple(found.values()), tuple(held_back)


def _later(view: View, each: Attached) -> Attached | None:
    pod = view.pods.get(each.tenancy.uid)
    grant = read_grant(pod) if pod is not None else None
    if pod is None or not isinstance(grant, Grant) or grant.generation <= each.tenancy.grant.generation:
        return None
    same = grant.gpus == each.tenancy.grant.gpus and each.container in grant.containers
    return Attached(each.name, each.container, Tenancy(pod.uid, grant, pod.kinds)) if same else None


def _is_gone(view: View, name: str) -> bool:
    uid = view.holders[name].uid
    pod = view.pods.get(uid)
    return (pod is None or pod.finished) and uid not in view.running


def _decide(view: View, name: str, holder: Holder, others: Sequence[Tenancy]) -> Attached | Problem:
    pod = view.pods.get(holder.uid)
    if pod is None:
        return Problem(Fault.NO_GRANT, "the API server does not know this pod any more")
    grant = read_grant(pod)
    if isinstance(grant, Problem):
        return grant
    tenancy = Tenancy(pod.uid, grant, pod.kinds)
    return check(tenancy, holder.container, view.here, others) or Attached(name, holder.container, tenancy)


# Every look reads the grant of every pod; a node has some hundred pods at most.
_decoded = lru_cache(1024)(decode_grant)


def read_grant(pod: PodView) -> Grant | Problem:
    """The pod's grant as the scheduler wrote it."""
    if pod.grant is None:
        return Problem(
            Fault.NO_GRANT, "the pod was bound without a grant: was it scheduled by a scheduler without milligpu?"
        )
    try:
        return _decoded(pod.grant)
    except MilligpuError as error:
        return Problem(Fault.BAD_GRANT, error.message)
