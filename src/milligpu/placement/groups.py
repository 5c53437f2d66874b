"""Which cards of a node belong together: groups with the best links between them."""

from collections.abc import Iterator
from itertools import islice

from milligpu.placement.snapshot import Wiring


def best_group(wiring: Wiring, bits: int, count: int, *, nvlink: bool, numa: bool) -> tuple[int, ...] | None:
    """The group whose weakest link is best, then whose links sum up best, then on the fewest NUMA nodes."""
    best: tuple[int, ...] | None = None
    quality: tuple[int, int, int] = (-1, 0, 0)
    for group in _groups(wiring, bits, count, nvlink, numa):
        found = group_quality(wiring, group)
        if found > quality:
            best, quality = group, found
    return best


def group_quality(wiring: Wiring, group: tuple[int, ...]) -> tuple[int, int, int]:
    """How good a group's links are; compares as numbers do."""
    links = [wiring.ranks[a][b] for at, a in enumerate(group) for b in group[at + 1 :]]
    return min(links, default=0), sum(links), -len({wiring.numa[card] for card in group})


# Choosing 8 of 16 cards is 12,870 groups; a first few thousand hold one that is as good.
_LOOK_MAX = 4096


def _groups(wiring: Wiring, bits: int, count: int, nvlink: bool, numa: bool) -> Iterator[tuple[int, ...]]:
    cards = [card for card in range(bits.bit_length()) if bits >> card & 1]

    def extend(group: tuple[int, ...], at: int) -> Iterator[tuple[int, ...]]:
        if len(group) == count:
            yield group
            return
        for place in range(at, len(cards) - (count - len(group)) + 1):
            card = cards[place]
            if numa and group and wiring.numa[card] != wiring.numa[group[0]]:
                continue
            if nvlink and any(not wiring.nvlink[card] >> other & 1 for other in group):
                continue
            yield from extend((*group, card), place + 1)

    yield from islice(extend((), 0), _LOOK_MAX)
