"""Resizing running pods, as the books see it: what is missing, and what counts while a grant is being written.

No I/O. The next generation of a grant is booked before it is written, beside the present one, and on each card the
larger of the two counts until it is known which of them holds. So whoever dies in between, nothing is given twice.
"""

from collections.abc import Iterable

from milligpu.dialects.resize import parse_resize, resized
from milligpu.model.errors import BadFormat
from milligpu.model.gpu import State
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.reasons import Reason, Refusal
from milligpu.model.units import show_mib, show_milli
from milligpu.scheduler.books import DOUBT_S, Books, Entry, Stage
from milligpu.wire.grant import decode_grant

_FOREVER = float("inf")


def wanted(entry: Entry) -> Grant | None:
    """The grant that a bound pod asks for instead of its own; None when it has what it wants. BadRequest if bad."""
    if entry.stage is not Stage.BOUND or entry.grant is None or not entry.resize:
        return None
    grant = resized(entry.grant, parse_resize(entry.resize))
    return None if grant is entry.grant else grant


def grows_beyond(entry: Entry, grant: Grant, books: Books) -> bool:
    """Whether any container would have more than its pod was counted with when it was admitted."""
    request, node = entry.wish.request, books.placer.snapshot.nodes.get(entry.node)
    cards = {gpu.uuid: gpu for gpu in node.gpus} if node is not None else {}
    if request is None:
        return True
    for container in request.containers:
        for share in grant.containers.get(container.name, ()):
            if container.share is None or share.gpu not in cards:
                return True
            asked = container.share.on(cards[share.gpu], request.policy)
            if share.milli > asked.milli or share.mib > asked.mib:
                return True
    return False


def short_of(books: Books, entry: Entry, grant: Grant) -> list[Refusal]:
    """What is missing on the pod's own cards for another grant in place of its present one."""
    if entry.node not in books.placer.snapshot.nodes:
        return [Refusal(Reason.NO_GPU, entry.node)]
    now = dict(books.holding(entry, entry.grant).cards)
    found: list[Refusal] = []
    for uuid, demand in books.holding(entry, grant).cards:
        milli, mib = demand.milli - now[uuid].milli, demand.mib - now[uuid].mib
        if milli > 0 or mib > 0:
            found += _missing(books, (entry.node, uuid), milli, mib)
    return found


def _missing(books: Books, card: tuple[str, str], milli: int, mib: int) -> Iterable[Refusal]:
    snap = books.placer.snapshot
    cell, state = snap.cell_of[card], snap.state(*card)
    if state is not State.OK:
        yield Refusal(Reason.SICK if state is State.SICK else Reason.CORDONED, *card)
    for reason, more, free in (
        (Reason.INSUFFICIENT_CORE, milli, int(snap.milli[cell])),
        (Reason.INSUFFICIENT_MEMORY, mib, int(snap.mib[cell])),
    ):
        if more > max(0, free):
            yield Refusal(reason, *card, more, max(0, free))


def explain(refusals: Iterable[Refusal]) -> str:
    """Why a pod keeps the share it has, in a line."""
    return f"it keeps the share it has: {', '.join(map(_words, refusals))}"


def _words(refusal: Refusal) -> str:
    if not refusal.wanted:
        return f"{refusal.reason} ({refusal.where})"
    return f"{refusal.reason} ({refusal.where}: wants {refusal.wanted} more, {refusal.best} free)"


def words(grant: Grant) -> str:
    """What a grant gives, for people."""
    return ", ".join(
        f"{name}: {share.gpu} {_amounts(share)}" for name, shares in grant.containers.items() for share in shares
    )


def _amounts(share: GpuShare) -> str:
    return "whole" if share.whole else f"{show_milli(share.milli)} with {show_mib(share.mib)}"


def is_of(entry: Entry, text: str) -> bool:
    """Whether this is the grant that the books know the pod by."""
    try:
        return decode_grant(text) == entry.grant
    except BadFormat:
        return False


def begin(books: Books, entry: Entry, grant: Grant) -> None:
    """The next grant is about to be written."""
    entry.coming, entry.until = grant, _FOREVER
    books.rebook(entry)


def end(books: Books, uid: str, *, written: bool) -> None:
    """The API server has answered."""
    entry = books.entry(uid)
    if entry is None or entry.coming is None:
        return  # the watch was faster
    if written:
        entry.grant = entry.coming
    entry.coming, entry.until = None, _FOREVER
    books.rebook(entry)


def doubt(books: Books, uid: str, now: float) -> None:
    """No answer came: it may be carried out yet, for as long as the API server keeps a request."""
    entry = books.entry(uid)
    if entry is not None and entry.coming is not None:
        entry.until = now + DOUBT_S


def expire(books: Books, now: float) -> None:
    """What nobody saw carried out in all that time was not."""
    for uid, entry in tuple(books.resizing.items()):
        if entry.coming is not None and entry.until <= now:
            end(books, uid, written=False)
