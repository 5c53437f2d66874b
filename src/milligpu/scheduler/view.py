"""The books of a cluster as a command sees it: made from lists, and never written."""

from collections.abc import Iterable
from dataclasses import dataclass

from milligpu import dialects
from milligpu.kube import objects
from milligpu.model.gpu import Mode, State
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.scheduler.books import Books
from milligpu.scheduler.sight import NodeReader, PodReader


def view(nodes: Iterable[objects.Node], pods: Iterable[objects.Pod]) -> Books:
    """Who holds what, as the service would have it after a restart."""
    books = Books(Placer(Snapshot()), lambda: 0.0)
    node_reader, pod_reader = NodeReader(), PodReader(dialects.read)
    for node in nodes:
        sight = node_reader.sight(node)
        if sight is not None:
            books.put_node(sight)
    for pod in pods:
        books.put_pod(pod_reader.sight(pod))
    return books


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of one model."""

    model: str
    cards: int
    whole: int
    """Cards that nobody is on."""
    milli: int
    """The largest share that one card can give, with `mib` beside it there."""
    mib: int
    where: str
    total: int
    """All free milli-GPU together, in pieces."""


def rooms(books: Books) -> list[Room]:
    """Per model, the largest obtainable share; cards that are out of use or not shared have none."""
    snap = books.placer.snapshot
    found: dict[str, list[tuple[int, int, bool, str]]] = {}
    for node in snap.nodes.values():
        for gpu in node.gpus:
            cell = snap.cell_of[node.name, gpu.uuid]
            open_ = snap.state(node.name, gpu.uuid) is State.OK and gpu.mode is not Mode.MIG
            milli, mib = (int(snap.milli[cell]), int(snap.mib[cell])) if open_ else (0, 0)
            empty = open_ and not snap.tenants[cell]
            shared = empty or gpu.mode is not Mode.WHOLE
            if not shared:
                milli = mib = 0
            found.setdefault(gpu.model, []).append((max(0, milli), max(0, mib), empty, f"{node.name}/{gpu.uuid}"))
    return [_room(model, cards) for model, cards in sorted(found.items())]


def _room(model: str, cards: list[tuple[int, int, bool, str]]) -> Room:
    milli, mib, _, where = max(cards, key=lambda card: card[:2])
    whole = sum(empty for _, _, empty, _ in cards)
    return Room(model, len(cards), whole, milli, mib, where if milli else "", sum(card[0] for card in cards))
