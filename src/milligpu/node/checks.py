"""The last check of a grant, on the node that is to honour it. Pure.

The scheduler decides; this only makes sure that the decision is about this pod, this node and these cards, and that
no card is promised beyond its size, whatever a paused scheduler or a forged annotation says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from milligpu.model.footprint import Demand, held
from milligpu.model.gpu import Gpu, Mode, State
from milligpu.model.grant import Grant
from milligpu.model.request import Kind


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


def check(
    tenancy: Tenancy, container: str, node: str, cards: Mapping[str, Gpu], others: Iterable[Tenancy]
) -> Problem | None:
    """Whether this container may have what its pod's grant says, beside what `others` hold here."""
    grant = tenancy.grant
    if grant.uid != tenancy.uid:
        return Problem(Fault.OTHER_POD, f"the grant is for pod uid {grant.uid}, this one is {tenancy.uid}")
    if grant.node != node:
        return Problem(Fault.OTHER_NODE, f"the grant is for node {grant.node}, this one is {node}")
    if container not in grant.containers:
        return Problem(Fault.NO_SHARE, f"the grant has no share for container {container}")
    return _check_cards(tenancy, cards) or _check_sums(tenancy, cards, others)


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


def _check_sums(tenancy: Tenancy, cards: Mapping[str, Gpu], others: Iterable[Tenancy]) -> Problem | None:
    taken: dict[str, list[Demand]] = {}
    for other in others:
        if other.uid != tenancy.uid:
            for gpu, demand in held(other.grant.containers, other.kinds, cards).items():
                taken.setdefault(gpu, []).append(demand)
    for gpu, demand in held(tenancy.grant.containers, tenancy.kinds, cards).items():
        card, beside = cards[gpu], taken.get(gpu, [])
        milli = demand.milli + sum(other.milli for other in beside)
        mib = demand.mib + sum(other.mib for other in beside)
        if milli > card.milli - card.reserved or mib > card.mib or (beside and demand.whole):
            want, have = f"{milli} milli and {mib} MiB", f"{card.milli - card.reserved} and {card.mib}"
            return Problem(Fault.OVERCOMMIT, f"with those who hold it now GPU {gpu} would give {want} of {have}")
    return None
