"""Resizing running pods in the cluster state: what is missing, and what counts while a grant is being written.

No I/O. The next generation of a grant counts before it is written, together with the present one: on each GPU the
larger of the two, until it is known which of them holds. So no crash can give a share away twice.
"""

from collections.abc import Iterable

from milligpu.cluster.binds import DOUBT_S
from milligpu.cluster.pod_entry import FOREVER, PodEntry, PodStage
from milligpu.cluster.shrink import full_shares
from milligpu.cluster.state import ClusterState
from milligpu.dialects.resize import ShareChange, parse_resize, resized_grant
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import GpuState, short_uuid
from milligpu.model.grant import Grant
from milligpu.model.reasons import AmountUnit, Reason, Refusal
from milligpu.model.request import Share
from milligpu.model.units import show_mib, show_milli
from milligpu.placement.refuse import refuse_state
from milligpu.wire.grant import decode_grant


def wanted_grant(state: ClusterState, entry: PodEntry) -> Grant | None:
    """Return the grant that a bound pod asks for, or had before it was shrunk; None if it has that.

    Raises `BadRequest` if it is invalid.
    """
    if entry.stage is not PodStage.BOUND or entry.grant is None:
        return None
    changes = dict(full_shares(state, entry))
    if entry.resize and entry.spec.is_remote:
        want = "left out: a share on a GPU server cannot be resized"
        raise BadRequest(names.RESIZE, entry.resize, want, hint="create the pod again with another share")
    for name, change in parse_resize(entry.resize or "{}").items():
        changes[name] = change.over(changes.get(name, ShareChange()))
    grant = resized_grant(entry.grant, changes)
    return None if grant is entry.grant else grant


def exceeds_request(entry: PodEntry, grant: Grant, state: ClusterState) -> bool:
    """Whether any container would get more than its pod was created with."""
    request, node = entry.spec.request, state.placer.snapshot.nodes.get(entry.node)
    gpus = {gpu.uuid: gpu for gpu in node.gpus} if node is not None else {}
    if request is None:
        return True
    for container in request.containers:
        for held in grant.containers.get(container.name, ()):
            if container.share is None or held.gpu not in gpus:
                return True
            asked = container.share.resolve(gpus[held.gpu])
            if held.share.milli > asked.milli or held.share.mib > asked.mib:
                return True
    return False


def grows(entry: PodEntry, grant: Grant) -> bool:
    """Whether any container would be guaranteed more compute than it is now."""
    if entry.grant is None:
        return True
    held = entry.grant.containers
    pairs = (pair for name, shares in grant.containers.items() for pair in zip(shares, held[name], strict=True))
    return any(after.share.milli > before.share.milli for after, before in pairs)


def impossible_for(state: ClusterState, entry: PodEntry, grant: Grant) -> Refusal | None:
    """Say which of the pod's GPUs could not provide a grant even if all other pods ended; None if all could."""
    node = state.placer.snapshot.nodes.get(entry.node)
    if node is None:
        return None  # it may come back
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    for uuid, demand in state.shares.holding(entry, grant).demands:
        gpu = gpus.get(uuid)
        if gpu is None:
            continue
        for wanted, most, unit in (
            (demand.milli, gpu.allocatable, AmountUnit.COMPUTE),
            (demand.mib, gpu.allocatable_mib, AmountUnit.MEMORY),
        ):
            if wanted > most:
                return Refusal(Reason.TOO_LARGE, entry.node, uuid, wanted, most, unit)
    return None


def missing_for(state: ClusterState, entry: PodEntry, grant: Grant) -> list[Refusal]:
    """Return what the pod's own GPUs lack for another grant in place of its present one."""
    if entry.node not in state.placer.snapshot.nodes:
        return [Refusal(Reason.NO_GPU, entry.node)]
    now = dict(state.shares.holding(entry, entry.grant).demands)
    found: list[Refusal] = []
    for uuid, demand in state.shares.holding(entry, grant).demands:
        milli, mib = demand.milli - now[uuid].milli, demand.mib - now[uuid].mib
        if milli > 0 or mib > 0:
            found += _missing(state, (entry.node, uuid), milli, mib)
    return found


def _missing(state: ClusterState, gpu: tuple[str, str], milli: int, mib: int) -> Iterable[Refusal]:
    snap = state.placer.snapshot
    cell, health = snap.cell_of[gpu], snap.state(*gpu)
    if health is not GpuState.OK:
        yield refuse_state(health, gpu[0], snap.gpu(*gpu))
    for reason, more, free in (
        (Reason.INSUFFICIENT_CORE, milli, int(snap.milli[cell])),
        (Reason.INSUFFICIENT_MEMORY, mib, int(snap.mib[cell])),
    ):
        if more > max(0, free):
            yield Refusal(reason, *gpu, more, max(0, free))


def explain_resize(refusals: Iterable[Refusal]) -> str:
    """Say in one line why a pod keeps the share it has."""
    return f"it keeps the share it has: {', '.join(map(_words, refusals))}"


def _words(refusal: Refusal) -> str:
    if refusal.amounts:
        return f"{refusal.reason} ({refusal.where} has {refusal.amounts} that it wants in addition)"
    return f"{refusal.reason} ({refusal.where}{f': {refusal.message}' if refusal.message else ''})"


def describe_grant(grant: Grant) -> str:
    return ", ".join(
        f"{name}: {short_uuid(each.gpu)} {_amounts(each.share)}"
        for name, shares in grant.containers.items()
        for each in shares
    )


def _amounts(share: Share) -> str:
    if share.whole:
        return "whole"
    limit = f" up to {show_milli(share.limit)}" if share.limit > max(1, share.milli) else ""
    return f"{show_milli(share.milli)}{limit} with {show_mib(share.mib)}"


def is_current_grant(entry: PodEntry, text: str) -> bool:
    """Whether this text is the pod's grant in the cluster state."""
    try:
        return decode_grant(text) == entry.grant
    except BadFormat:
        return False


def begin_resize(state: ClusterState, entry: PodEntry, grant: Grant) -> None:
    """Count the next grant, which is about to be written."""
    entry.next_grant, entry.until = grant, FOREVER
    state.shares.update(entry)


def end_resize(state: ClusterState, uid: str, *, written: bool) -> None:
    """Note the API server's answer."""
    entry = state.entry(uid)
    if entry is None or entry.next_grant is None:
        return  # the watch showed it first
    if written:
        entry.grant = entry.next_grant
    entry.next_grant, entry.until = None, FOREVER
    state.shares.update(entry)


def mark_resize_unknown(state: ClusterState, uid: str, now: float) -> None:
    """Count both grants for as long as the API server may carry out a write without an answer."""
    entry = state.entry(uid)
    if entry is not None and entry.next_grant is not None:
        entry.until = now + DOUBT_S


def unknown_resizes(state: ClusterState, now: float) -> list[PodEntry]:
    """Return the pods whose next grant can no longer be written, and may have been: each has to be read again."""
    resized = {**state.pods.resizing, **state.pods.in_services}
    return [each for each in resized.values() if each.next_grant is not None and each.until <= now]
