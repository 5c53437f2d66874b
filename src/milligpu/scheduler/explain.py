"""Why a pod waits, in one line: the blocker with numbers, and what would help. The same for events and commands."""

from collections.abc import Generator
from dataclasses import replace

from milligpu.model.errors import BadRequest
from milligpu.model.grant import NoFit
from milligpu.model.reasons import Reason, Refusal
from milligpu.model.request import PodRequest
from milligpu.model.requirements import ANY
from milligpu.placement import refuse
from milligpu.placement.snapshot import Holding
from milligpu.scheduler.books import Books
from milligpu.scheduler.sight import Wish

REASON = "GPUUnavailable"
"""Of the event that carries the line."""
_SHORT = frozenset({Reason.INSUFFICIENT_CORE, Reason.INSUFFICIENT_MEMORY})
# Who leaves first is a guess in any case: look at the cards that come nearest.
_CARDS_MAX = 16


def explain(books: Books, wish: Wish) -> str:
    """The line, at once."""
    steps = gradually(books, wish)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def gradually(books: Books, wish: Wish) -> Generator[None, None, str]:
    """The line, in small steps between which the books may be written; no node may come or go meanwhile."""
    if wish.request is None:
        return wish.mistake
    admitted = books.admitted(wish.constraints)
    try:
        books.placer.spec(wish.request)
    except BadRequest as error:
        return error.message
    found = yield from refuse.gradually(books.placer, wish.request, admitted)
    inside = set(admitted)
    excluded = tuple(Refusal(Reason.NODE_EXCLUDED, name) for name in books.node_names() if name not in inside)
    whole = NoFit(found.refusals + excluded, books.nodes, "")
    ways = [
        way for way in (found.nearest, _unrestricted(books, wish, admitted), _leaving(books, wish, found)) if way
    ]
    return whole.summary() + (f"; try {', or '.join(ways)}" if ways else "")


def _unrestricted(books: Books, wish: Wish, admitted: list[str]) -> str:
    """The model that it would get if it did not insist."""
    request = wish.request
    assert request is not None
    if request.requirements == ANY and request.gpu_class is None:
        return ""
    grant = books.placer.place(replace(request, requirements=ANY, gpu_class=None), admitted)
    if grant is None or not grant.gpus:
        return ""
    card = next(gpu for gpu in books.placer.snapshot.nodes[grant.node].gpus if gpu.uuid == grant.gpus[0])
    asked = "class" if request.gpu_class is not None else "require"
    return f"{card.model} (fits now without milligpu.dev/{asked})"


def _leaving(books: Books, wish: Wish, found: NoFit) -> str:
    """Whose end would make room, for requests that need one card."""
    request = wish.request
    assert request is not None
    if not _one_card(request):
        return ""
    short = [refusal for refusal in found.refusals if refusal.reason in _SHORT and refusal.gpu]
    short.sort(key=lambda refusal: refusal.best / refusal.wanted, reverse=True)
    ends = [end for refusal in short[:_CARDS_MAX] for end in _ends(books, request, refusal)]
    if not ends:
        return ""
    holding, refusal = min(ends, key=lambda end: (end[0].priority, sum(d.milli for _, d in end[0].cards)))
    entry = books.entry(holding.pod)
    if entry is not None and entry.wish.pod.namespace == wish.pod.namespace:
        return f"again when pod {entry.wish.pod.name} on {refusal.where} ends"
    return f"again when a pod on {refusal.where} ends"


def _ends(books: Books, request: PodRequest, refusal: Refusal) -> list[tuple[Holding, Refusal]]:
    snap = books.placer.snapshot
    cell = snap.cell_of[refusal.node, refusal.gpu]
    demand = books.placer.spec(request).needs[int(snap.kind[cell[0]])].demands[-1]
    milli, mib, others = int(snap.milli[cell]), int(snap.mib[cell]), int(snap.tenants[cell])
    ends: list[tuple[Holding, Refusal]] = []
    for holding in snap.holdings_on(refusal.node):
        for uuid, held in holding.cards:
            alone = not demand.whole or others == 1
            if (
                uuid == refusal.gpu
                and alone
                and milli + held.milli >= demand.milli
                and mib + held.mib >= demand.mib
            ):
                ends.append((holding, refusal))
    return ends


def _one_card(request: PodRequest) -> bool:
    shares = [container.share for container in request.containers if container.share is not None]
    return len(shares) == 1 and shares[0].count == 1
