"""The last check of a grant, on the node that is to honour it. Pure.

The scheduler decides; this only makes sure that the decision is about this pod, this node and these cards, and that
no card is promised beyond its size, whatever a paused scheduler or a forged annotation says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from milligpu.model.footprint import Demand, held, peak
from milligpu.model.gpu import Gpu, Mode, State
from milligpu.model.grant import Grant
from milligpu.model.request import Kind
from milligpu.model.units import Mib


class Fault(StrEnum):
    """Why a container does not get what its pod's grant says; `docs/reasons.md` has each."""

    NO_GRANT = "NoGrant"
    BAD_GRANT = "BadGrant"
    OTHER_POD = "GrantOfAnotherPod"
    OTHER_NODE = "GrantForAnotherNode"
    NO_SHARE = "ContainerNotInGrant"
    UNKNOWN_GPU = "UnknownGPU"
    UNFIT_GPU = "GPUNotUsable"
    OVERCOMMIT = "GPUOverCommitted"


# What passes by itself, because somebody is about to leave or to write; the others need a new decision.
PASSING = frozenset({Fault.NO_GRANT, Fault.OVERCOMMIT})


@dataclass(frozen=True, slots=True)
class Problem:
    """A refusal, with a sentence for the pod's event."""

    fault: Fault
    message: str


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One pod as this node knows it: its grant, and in which order its containers run."""

    uid: str
    grant: Grant
    kinds: Mapping[str, Kind]


@dataclass(frozen=True, slots=True)
class Here:
    """What a grant is checked against."""

    node: str
    cards: Mapping[str, Gpu]
    used: Mapping[tuple[str, str], Mib] = field(default_factory=dict[tuple[str, str], Mib])
    """By pod and card, what resized pods use: a cap that was lowered below that frees only what is not in use."""


def check(tenancy: Tenancy, container: str, here: Here, others: Iterable[Tenancy]) -> Problem | None:
    """Whether this container may have what its pod's grant says, beside what `others` hold here."""
    found = _check_identity(tenancy, container, here.node) or _check_cards(tenancy, here.cards)
    return found or _check_sums(tenancy, here, others)


def check_resize(tenancy: Tenancy, container: str, here: Here, others: Iterable[Tenancy]) -> Problem | None:
    """The same for a later grant of one who is on the cards already, however well these are."""
    return _check_identity(tenancy, container, here.node) or _check_sums(tenancy, here, others)


def _check_identity(tenancy: Tenancy, container: str, node: str) -> Problem | None:
    grant = tenancy.grant
    if grant.uid != tenancy.uid:
        return Problem(Fault.OTHER_POD, f"the grant is for pod uid {grant.uid}, this one is {tenancy.uid}")
    if grant.node != node:
        return Problem(Fault.OTHER_NODE, f"the grant is for node {grant.node}, this one is {node}")
    if container not in grant.containers:
        return Problem(Fault.NO_SHARE, f"the grant has no share for container {container}")
    return None


def _check_cards(tenancy: Tenancy, cards: Mapping[str, Gpu]) -> Problem | None:
    for shares in tenancy.grant.containers.values():
        for share in shares:
            card = cards.get(share.gpu)
            if card is None:
                return Problem(Fault.UNKNOWN_GPU, f"this node has no GPU {share.gpu}")
            if card.state is not State.OK:
                return Problem(
                    Fault.UNFIT_GPU, f"GPU {share.gpu} is {card.state}: {card.reason or 'no reason given'}"
                )
            if card.mode not in ((Mode.SHARE, Mode.WHOLE) if share.whole else (Mode.SHARE,)):
                return Problem(Fault.UNFIT_GPU, f"GPU {share.gpu} is handed out as {card.mode} only")
    return None


def _check_sums(tenancy: Tenancy, here: Here, others: Iterable[Tenancy]) -> Problem | None:
    taken = held_here((other for other in others if other.uid != tenancy.uid), here)
    for gpu, demand in held(tenancy.grant.containers, tenancy.kinds, here.cards).items():
        if gpu not in here.cards:
            return Problem(Fault.UNKNOWN_GPU, f"this node has no GPU {gpu}")
        card, beside = here.cards[gpu], [amount for (_, on), amount in taken.items() if on == gpu]
        milli = demand.milli + sum(other.milli for other in beside)
        mib = demand.mib + sum(other.mib for other in beside)
        if milli > card.usable or mib > card.usable_mib or (beside and demand.whole):
            want, have = f"{milli} milli and {mib} MiB", f"{card.usable} and {card.usable_mib}"
            return Problem(Fault.OVERCOMMIT, f"with those who hold it now GPU {gpu} would give {want} of {have}")
    return None


def held_here(tenancies: Iterable[Tenancy], here: Here) -> dict[tuple[str, str], Demand]:
    """By pod and card, what each holds: of two generations of its grant the larger, and at least what it uses."""
    found: dict[tuple[str, str], Demand] = {}
    for each in tenancies:
        for gpu, demand in held(each.grant.containers, each.kinds, here.cards).items():
            used = replace(demand, mib=Mib(max(demand.mib, here.used.get((each.uid, gpu), 0))))
            found[each.uid, gpu] = peak(used, found.get((each.uid, gpu), used))
    return found
