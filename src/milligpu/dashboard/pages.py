"""What each page shows, as plain values: the templates draw them, and the JSON twin of a page is the same. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from milligpu.model.units import BYTES_PER_MIB, WHOLE
from milligpu.status.advice import Advice, Verdict, needs_attention, share_link
from milligpu.status.cost import HOURS_PER_MONTH, CostLine, CostReport, IdleCost
from milligpu.status.funnel import Funnel, Stranded, funnel, stranded
from milligpu.status.picture import (
    Picture,
    WaitingRequest,
    gpu_key,
    holder_name,
    share_key,
    shares_by_gpu,
    used_of_card,
)
from milligpu.status.queue_values import CalendarSummary, QueueStatus, QueueUserStatus
from milligpu.wire.status import GpuStatus, ProcessUsage, ShareUsage, Violation

_HIDDEN = "in a namespace that you may not see"
# The overview is read at a glance; whole lists have pages of their own.
_FEW = 6
SHOWN_MAX = 500
"""A page of more rows is slow, and nobody reads it; the JSON twin and the CSV have all."""


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One share as tables and tiles show it."""

    name: str
    link: str
    """Empty for what the reader may not see."""
    key: str
    """Of its history."""
    namespace: str
    container: str
    owner: str
    program: str
    """What a session runs."""
    gpu: str
    gpu_name: str
    """The node and the index, as people say it."""
    node: str
    share: float
    limit: float
    used: float | None
    """All in cards."""
    of_share: float | None
    """Used, as a fraction of the share; up to 1."""
    memory_used: int | None
    memory_limit: int
    memory_peak: int | None
    whole: bool
    waiting: bool | None
    refusals: int | None
    verdict: str
    evidence: str
    command: str


@dataclass(frozen=True, slots=True)
class GpuTile:
    """One GPU as the map shows it."""

    uuid: str
    index: int
    node: str
    model: str
    state: str
    message: str
    cards: float
    used: float | None
    """In cards."""
    use: float | None
    """Fraction of its own time."""
    allocated: float
    memory: float | None
    """Fraction of its memory in use."""
    memory_used: int | None
    memory_total: int
    power: float | None
    temperature: int | None
    policy: str
    shares: Sequence[ShareRow]
    verdict: str
    evidence: str

    @property
    def level(self) -> int:
        """The color by use, 0 to 5."""
        return 0 if not self.use else min(5, 1 + int(self.use * 5))


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """The first page."""

    funnel: Funnel
    stranded: Sequence[Stranded]
    waiting: Sequence[WaitingRequest]
    waiting_count: int
    attention: Sequence[Advice]
    attention_count: int
    power: float | None
    """Watts of all GPUs that say it."""
    temperature: float | None
    """The average."""
    memory_used: int
    memory_total: int
    gpu_count: int
    unhealthy_count: int
    idle_cost: float | None
    idle_hours: float | None
    formula: IdleCost | None
    """What idle GPUs cost in a month at the use of the last 30 days; None without prices."""
    formula_cost: float | None
    currency: str
    tiles: Sequence[GpuTile]


@dataclass(frozen=True, slots=True)
class NodeTiles:
    """The GPUs of one machine."""

    node: str
    tiles: Sequence[GpuTile]


@dataclass(frozen=True, slots=True)
class GpusPage:
    """The map."""

    nodes: Sequence[NodeTiles]
    count: int
    dense: bool
    """Whether there are so many GPUs that a tile is a square without words."""


@dataclass(frozen=True, slots=True)
class GpuPage:
    """One GPU."""

    tile: GpuTile
    key: str
    processes: Sequence[ProcessUsage]
    violations: Sequence[Violation]


@dataclass(frozen=True, slots=True)
class NodePage:
    """The GPUs and shares of one machine."""

    node: str
    tiles: Sequence[GpuTile]
    shares: Sequence[ShareRow]


@dataclass(frozen=True, slots=True)
class SharesPage:
    """Everything that holds a share."""

    shares: Sequence[ShareRow]
    words: str
    """What was searched for."""


@dataclass(frozen=True, slots=True)
class HolderPage:
    """One pod or session."""

    name: str
    kind: str
    shares: Sequence[ShareRow]
    command: str
    """What a session runs."""
    since: float | None
    explanation: str
    events: Sequence[str]
    processes: Sequence[ProcessUsage]


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """Everything that waits."""

    waiting: Sequence[WaitingRequest]
    cluster: bool


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue: what it may have, has, uses and waits for, in GPUs."""

    name: str
    parent: str
    order: str
    weight: int
    guarantee: float | None
    ceiling: float | None
    held: float
    used: float
    waiting: int
    problem: str
    line: Sequence[WaitingRequest]
    """Those that wait in it and that the reader may see, in order."""

    @property
    def scale(self) -> float:
        """What the bar of the queue is a part of."""
        return max(self.held, self.guarantee or 0.0, self.ceiling or 0.0)


@dataclass(frozen=True, slots=True)
class QueuesPage:
    """Queues, who had how much of late, and calendars."""

    queues: Sequence[QueueRow]
    users: Sequence[QueueUserStatus]
    calendars: Sequence[CalendarSummary]
    cluster: bool


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """What one namespace or person has, uses and costs."""

    owner: str
    shares: int
    allocated: float
    used: float
    idle_now: float
    cost: CostLine | None


@dataclass(frozen=True, slots=True)
class OwnersPage:
    """People and namespaces."""

    owners: Sequence[OwnerRow]
    queues: Sequence[CostLine]
    """Empty without queues."""
    months: Sequence[CostLine]
    """Of all GPUs, the latest first."""
    currency: str
    total: CostLine | None
    unallocated: CostLine | None
    unknown_models: Sequence[str]
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class HealthPage:
    """What is wrong."""

    gpus: Sequence[GpuTile]
    """Those that are not in order."""
    attention: Sequence[Advice]
    violations: Sequence[Violation]
    problems: Sequence[str]
    gpu_count: int


DENSE_FROM = 400
"""GPUs from which on the map has squares instead of tiles."""


def gpu_names(picture: Picture) -> dict[str, str]:
    """How people call each GPU, by UUID."""
    return {gpu.uuid: f"{gpu.node} · {gpu.index}" if gpu.node else f"GPU {gpu.index}" for gpu in picture.gpus}


def _program(picture: Picture, use: ShareUsage) -> str:
    session = picture.sessions.get(use.session)
    return "" if session is None else " ".join(each.rpartition("/")[2] for each in session.command[:2])


def share_row(picture: Picture, use: ShareUsage, advice: dict[str, Advice], names: Mapping[str, str]) -> ShareRow:
    """Describe one share; `names` are those of `gpu_names`."""
    hidden = not (use.pod or use.session)
    share = use.milli / WHOLE
    found = None if hidden else advice.get(share_link(use))
    return ShareRow(
        name=_HIDDEN if hidden else holder_name(use),
        link="" if hidden else share_link(use),
        key="" if hidden else share_key(use),
        namespace=use.namespace,
        container=use.container,
        owner=picture.owner(use),
        program=_program(picture, use),
        gpu=use.gpu,
        gpu_name=names.get(use.gpu, use.gpu[:12]),
        node=use.node,
        share=share,
        limit=use.limit / WHOLE,
        used=use.utilization,
        of_share=None if use.utilization is None else min(1.0, use.utilization / share) if share else 0.0,
        memory_used=use.memory_used,
        memory_limit=use.memory_limit,
        memory_peak=use.memory_peak,
        whole=use.whole,
        waiting=use.waiting,
        refusals=use.refusals,
        verdict=found.verdict if found else Verdict.UNKNOWN,
        evidence=found.evidence if found else "",
        command=found.command if found else "",
    )


def tiles(picture: Picture, advice: Iterable[Advice]) -> list[GpuTile]:
    """Describe all GPUs, by node and index."""
    known = {each.link: each for each in advice}
    on = shares_by_gpu(picture)
    ordered = sorted(picture.gpus, key=lambda gpu: (gpu.node, gpu.index))
    names = gpu_names(picture)
    return [_tile(picture, gpu, on.get(gpu.uuid, []), known, names) for gpu in ordered]


def _tile(
    picture: Picture,
    gpu: GpuStatus,
    shares: list[ShareUsage],
    advice: dict[str, Advice],
    names: Mapping[str, str],
) -> GpuTile:
    used = used_of_card(gpu, shares)
    cards, total = gpu.milli / WHOLE, gpu.mib * BYTES_PER_MIB
    found = advice.get(f"/gpus/{gpu.uuid}")
    ordered = sorted(shares, key=lambda use: (-use.milli, use.namespace, use.pod, use.session))
    return GpuTile(
        gpu.uuid,
        gpu.index,
        gpu.node or picture.name,
        gpu.model,
        gpu.state,
        gpu.message,
        cards,
        used,
        None if used is None or not cards else min(1.0, used / cards),
        (gpu.milli - gpu.free_milli) / WHOLE,
        None if gpu.memory_used is None or not total else min(1.0, gpu.memory_used / total),
        gpu.memory_used,
        total,
        gpu.power,
        gpu.temperature,
        str(gpu.policy or ""),
        [share_row(picture, use, advice, names) for use in ordered],
        found.verdict if found else Verdict.UNKNOWN,
        found.evidence if found else "",
    )


def overview(picture: Picture, advice: Sequence[Advice], costs: CostReport | None) -> OverviewPage:
    """Make the first page; the cost is that of held but idle shares and of unallocated GPUs."""
    attention = needs_attention(advice)
    powers = [gpu.power for gpu in picture.gpus if gpu.power is not None]
    heats = [gpu.temperature for gpu in picture.gpus if gpu.temperature is not None]
    found = tiles(picture, advice) if len(picture.gpus) <= 16 else []
    formula = None if costs is None else costs.idle_cost(HOURS_PER_MONTH)
    return OverviewPage(
        funnel(picture),
        stranded(picture),
        picture.waiting[:_FEW],
        len(picture.waiting),
        attention[:_FEW],
        len(attention),
        sum(powers) if powers else None,
        sum(heats) / len(heats) if heats else None,
        sum(gpu.memory_used or 0 for gpu in picture.gpus),
        sum(gpu.mib for gpu in picture.gpus) * BYTES_PER_MIB,
        len(picture.gpus),
        sum(gpu.state not in {"ok", "cordoned"} for gpu in picture.gpus),
        None if costs is None else costs.total.idle,
        None if costs is None else costs.total.idle_hours,
        formula,
        None if formula is None else formula.cost,
        "" if costs is None else costs.currency,
        found,
    )


def gpus(picture: Picture, advice: Sequence[Advice]) -> GpusPage:
    """Make the map."""
    found = tiles(picture, advice)
    nodes: dict[str, list[GpuTile]] = {}
    for tile in found:
        nodes.setdefault(tile.node, []).append(tile)
    return GpusPage([NodeTiles(name, each) for name, each in nodes.items()], len(found), len(found) >= DENSE_FROM)


def gpu(picture: Picture, advice: Sequence[Advice], uuid: str) -> GpuPage | None:
    """Make the page of one GPU; None if there is none with this UUID."""
    found = picture.gpu(uuid)
    if found is None:
        return None
    known = {each.link: each for each in advice}
    return GpuPage(
        _tile(picture, found, picture.on_gpu(uuid), known, gpu_names(picture)),
        gpu_key(uuid),
        [each for each in picture.processes if each.gpu == uuid],
        [each for each in picture.violations if each.gpu == uuid],
    )


def node(picture: Picture, advice: Sequence[Advice], name: str) -> NodePage | None:
    """Make the page of one machine."""
    found = [tile for tile in tiles(picture, advice) if tile.node == name]
    return NodePage(name, found, [share for tile in found for share in tile.shares]) if found else None


def shares(picture: Picture, advice: Sequence[Advice], words: str = "") -> SharesPage:
    """Make the list of everything that holds a share; what the reader may not see is left out.

    `words` must all be in a row's name, owner, verdict or node.
    """
    known = {each.link: each for each in advice}
    names = gpu_names(picture)
    rows = [share_row(picture, use, known, names) for use in picture.shares if use.pod or use.session]
    wanted = words.lower().split()
    found = [
        row
        for row in rows
        if all(word in f"{row.name} {row.owner} {row.verdict} {row.node}".lower() for word in wanted)
    ]
    return SharesPage(sorted(found, key=lambda row: (row.owner, row.name, row.gpu)), words)


def holder(
    picture: Picture,
    advice: Sequence[Advice],
    uses: Sequence[ShareUsage],
    *,
    explanation: str = "",
    events: Sequence[str] = (),
) -> HolderPage:
    """Make the page of one pod or session, from its shares."""
    known = {each.link: each for each in advice}
    first, names = uses[0], gpu_names(picture)
    session = picture.sessions.get(first.session)
    same = [
        each
        for each in picture.processes
        if (each.session and each.session == first.session)
        or (each.pod and (each.namespace, each.pod) == (first.namespace, first.pod))
    ]
    return HolderPage(
        holder_name(first),
        "session" if first.session else "pod",
        [share_row(picture, use, known, names) for use in uses],
        " ".join(session.command) if session else "",
        session.since if session else None,
        explanation,
        events,
        same,
    )


def queues(picture: Picture) -> QueuesPage:
    """Make the page of queues, their users, and the calendars of layouts."""
    used: dict[str, float] = {}
    for use in picture.shares:
        name = picture.queue_and_user(use)[0]
        used[name] = used.get(name, 0.0) + (use.utilization or 0.0)
    found = picture.queues
    rows = [_queue(each, used.get(each.name, 0.0), picture.waiting) for each in found.queues]
    return QueuesPage(rows, found.users, found.calendars, picture.cluster)


def _queue(queue: QueueStatus, used: float, waiting: Sequence[WaitingRequest]) -> QueueRow:
    mine = [each for each in waiting if each.queue == queue.name]
    return QueueRow(
        queue.name,
        queue.parent,
        queue.order,
        queue.weight,
        None if queue.guarantee_milli is None else queue.guarantee_milli / WHOLE,
        None if queue.ceiling_milli is None else queue.ceiling_milli / WHOLE,
        queue.held_milli / WHOLE,
        used,
        queue.waiting,
        queue.problem,
        sorted(mine, key=lambda each: each.turn or len(waiting)),
    )


def owners(
    picture: Picture, costs: CostReport | None, months: Sequence[CostLine], allowed: frozenset[str] | None
) -> OwnersPage:
    """Make the page of people and namespaces; `allowed` are the names that the reader may see, None for all."""
    now: dict[str, list[ShareUsage]] = {}
    for use in picture.shares:
        if use.pod or use.session:
            now.setdefault(picture.owner(use), []).append(use)
    known = {} if costs is None else {line.name: line for line in costs.by_owner()}
    names = sorted({*now, *known} - {""})
    rows = [
        OwnerRow(
            name,
            len(now.get(name, [])),
            sum(use.milli for use in now.get(name, [])) / WHOLE,
            sum(use.utilization or 0.0 for use in now.get(name, [])),
            sum(
                max(0.0, use.milli / WHOLE - use.utilization)
                for use in now.get(name, [])
                if use.utilization is not None
            ),
            known.get(name),
        )
        for name in names
        if allowed is None or name in allowed
    ]
    return OwnersPage(
        sorted(rows, key=lambda row: -(row.cost.allocated_hours if row.cost else 0.0)),
        [] if costs is None or allowed is not None else [line for line in costs.by_queue() if line.name],
        months,
        "" if costs is None else costs.currency,
        None if costs is None else costs.total,
        None if costs is None else costs.unallocated,
        () if costs is None else costs.unknown_models,
        0.0 if costs is None else costs.since,
        0.0 if costs is None else costs.until,
    )


def health(picture: Picture, advice: Sequence[Advice]) -> HealthPage:
    """Make the page of what is wrong."""
    bad = [tile for tile in tiles(picture, advice) if tile.state != "ok"]
    return HealthPage(bad, needs_attention(advice), picture.violations, picture.problems, len(picture.gpus))
