"""How GPUs are divided among pods of services: nobody loses what is its own, and loans come last.

Up to its template's share a pod has a claim; what is above is a loan. No pod gives up what it holds of its own for
another one, except where it is told to: a lender of an update, or a borrower whose loan is called back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodWant:
    """What one pod holds and should have, in milli-GPU on each of its GPUs."""

    uid: str
    gpus: tuple[tuple[str, str], ...]
    """Node and UUID."""
    present: int
    own: int
    """The part of what it should have to which it has a claim."""
    loan: int = 0
    """What it should have in addition."""
    rank: int = 0
    """Lower goes first: the new pods of an update before the old ones."""

    @property
    def kept(self) -> int:
        """What it holds of its own."""
        return min(self.own, self.present)


def divide(free: Mapping[tuple[str, str], int], wants: Sequence[PodWant]) -> dict[str, int]:
    """Return what each pod gets; `free` is what each GPU has free next to what these pods hold."""
    room = {gpu: max(0, milli) for gpu, milli in free.items()}
    for each in wants:
        for gpu in each.gpus:
            room[gpu] = room.get(gpu, 0) + each.present
    got = dict.fromkeys((each.uid for each in wants), 0)
    ordered = sorted(wants, key=lambda each: each.rank)

    def give(each: PodWant, wanted: int) -> None:
        more = min([wanted - got[each.uid], *(room[gpu] for gpu in each.gpus)])
        if more > 0:
            got[each.uid] += more
            for gpu in each.gpus:
                room[gpu] -= more

    for each in ordered:
        give(each, each.kept)
    for each in ordered:
        give(each, each.own)
    # Loans that exist before new ones, and small ones before large ones, so that none starves.
    for each in ordered:
        give(each, min(each.own + each.loan, max(each.present, each.own)))
    for each in sorted(ordered, key=lambda each: (each.rank, each.loan)):
        give(each, each.own + each.loan)
    return got
