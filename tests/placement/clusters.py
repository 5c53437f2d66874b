"""Small clusters and requests for tests: by hand, and drawn by hypothesis."""

from itertools import permutations
from typing import Any

from hypothesis import strategies as st

from milligpu.model.affinity import AffinityLabels
from milligpu.model.footprint import GpuDemand, footprint
from milligpu.model.gpu import ComputeCapability, Gpu, GpuLink, GpuState, Node, SharingMode
from milligpu.model.grant import Grant
from milligpu.model.policy import SharePolicy
from milligpu.model.request import ContainerKind, ContainerRequest, PodRef, PodRequest, ShareRequest
from milligpu.model.requirements import ANY, Requirements
from milligpu.model.units import Mib, Milli

CARD = Mib(16384)


def node(name: str, cards: int = 1, *, cpu: int = 0, memory: int = 0, **what: Any) -> Node:
    card: dict[str, Any] = {"model": "T4", "mib": CARD} | what
    gpus = tuple(Gpu(f"GPU-{name}-{at}", **card) for at in range(cards))
    return Node(name, gpus, cpu, memory)


def pod(name: str, milli: int | None = None, count: int = 1, **what: Any) -> PodRequest:
    """A pod with one container; `mib` is its memory, everything else is the request's."""
    mib = what.pop("mib", None)
    containers = ()
    if milli is not None or mib is not None:
        share = ShareRequest(count, None if milli is None else Milli(milli), mib)
        containers = (ContainerRequest("main", share),)
    return PodRequest(PodRef("test", name, name), containers, **what)


# -- drawn -----------------------------------------------------------------------------------------------------

_labels = st.sampled_from([None, None, None, "a", "b"])
_sizes = st.sampled_from([1, 100, 250, 333, 500, 600, 1000])


@st.composite
def nodes(draw: st.DrawFn, most: int = 4) -> list[Node]:
    made: list[Node] = []
    for at in range(draw(st.integers(1, most))):
        count = draw(st.integers(0, 3))
        uuids = [f"GPU-{at}-{card}" for card in range(count)]
        linked = draw(st.booleans())
        links = {a: {b: GpuLink("NV", 2) for b in uuids if a != b} if linked else {} for a in uuids}
        mixed = draw(st.booleans())
        first = _card(draw)
        gpus = [
            Gpu(uuid, **(_card(draw) if mixed else first), numa=card % 2, links=links[uuid], state=draw(_states))
            for card, uuid in enumerate(uuids)
        ]
        made.append(
            Node(f"n{at}", tuple(gpus), draw(st.sampled_from([0, 4000, 8000])), draw(st.sampled_from([0, 9000])))
        )
    return made


_states = st.sampled_from([GpuState.OK] * 6 + [GpuState.CORDONED, GpuState.UNHEALTHY])


def _card(draw: st.DrawFn) -> dict[str, Any]:
    milli = draw(st.sampled_from([1000, 1000, 500]))
    return {
        "model": draw(st.sampled_from(["T4", "A100"])),
        "mib": Mib(draw(st.sampled_from([1000, 16384]))),
        "milli": Milli(milli),
        "reserved": Milli(draw(st.sampled_from([0, 0, 0, 100]))),
        "capability": ComputeCapability(draw(st.sampled_from([7, 8])), 0),
        "ecc": draw(st.booleans()),
        "policy": draw(st.sampled_from([SharePolicy.BEST_EFFORT, SharePolicy.BEST_EFFORT, *SharePolicy])),
        "mode": draw(
            st.sampled_from(
                [SharingMode.SHARE, SharingMode.SHARE, SharingMode.SHARE, SharingMode.WHOLE, SharingMode.MIG]
            )
        ),
    }


@st.composite
def requests(draw: st.DrawFn, name: str = "p") -> PodRequest:
    containers = tuple(
        ContainerRequest(f"c{at}", draw(_shares()), kind)
        for at, kind in enumerate(
            sorted(
                draw(st.lists(st.sampled_from(ContainerKind), max_size=3)), key=lambda k: k is ContainerKind.MAIN
            )
        )
    )
    wants = ANY
    if draw(st.integers(0, 2)) == 0:
        wants = Requirements(
            models=draw(st.sampled_from([None, ("T4",), ("A100",)])),
            ecc=draw(st.booleans()),
            nvlink=draw(st.booleans()),
            numa=draw(st.booleans()),
            uuids_not=draw(st.sampled_from([(), ("GPU-0-0",)])),
        )
    locality = AffinityLabels(draw(_labels), draw(_labels), draw(_labels))
    return PodRequest(
        PodRef("test", name, name),
        containers,
        policy=draw(st.sampled_from([None, None, None, *SharePolicy])),
        requirements=wants,
        locality=locality,
        cpu_milli=draw(st.sampled_from([0, 1000, 3000])),
        memory_mib=draw(st.sampled_from([0, 2000])),
    )


@st.composite
def _shares(draw: st.DrawFn) -> ShareRequest | None:
    if draw(st.integers(0, 5)) == 0:
        return None
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    if draw(st.integers(0, 3)) == 0:
        milli = draw(st.sampled_from([None, None, Milli(0)]))
        mib = Mib(draw(st.sampled_from([200, 900, 5000])))
        return ShareRequest(count, milli, mib, limit=None if milli is None else Milli(1000))
    return ShareRequest(count, Milli(draw(_sizes)))


# -- what is true, found out the slow way ----------------------------------------------------------------------


class Ledger:
    """Who is on which card, kept without any of the code under test."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.pods: dict[str, tuple[PodRequest, Grant]] = {}

    def on_card(self, uuid: str) -> list[tuple[PodRequest, int, int]]:
        """The pods on a card with their peak milli and MiB there."""
        gpu = next(g for n in self.nodes for g in n.gpus if g.uuid == uuid)
        found: list[tuple[PodRequest, int, int]] = []
        for request, grant in self.pods.values():
            folded = footprint(request.containers, gpu)
            numbers = {
                number
                for name, parts in folded.slices.items()
                for (number, _), share in zip(parts, grant.containers[name], strict=True)
                if share.gpu == uuid
            }
            for number in numbers:
                demand = folded.demands[number]
                found.append((request, demand.milli, demand.mib))
        return found

    def free(self, gpu: Gpu) -> tuple[int, int]:
        held = self.on_card(gpu.uuid)
        return (
            gpu.milli - gpu.reserved - sum(milli for _, milli, _ in held),
            gpu.mib - sum(mib for _, _, mib in held),
        )

    def cpu_memory(self, node: Node) -> tuple[float, float]:
        here = [request for request, grant in self.pods.values() if grant.node == node.name]
        return (
            node.cpu_milli - sum(r.cpu_milli for r in here) if node.cpu_milli else float("inf"),
            node.memory_mib - sum(r.memory_mib for r in here) if node.memory_mib else float("inf"),
        )

    def can_place(self, request: PodRequest) -> bool:
        return any(self._on_node(request, node) for node in self.nodes)

    def _on_node(self, request: PodRequest, node: Node) -> bool:
        cpu, memory = self.cpu_memory(node)
        if cpu < request.cpu_milli or memory < request.memory_mib:
            return False
        if not request.wants_gpu:
            return True
        return any(self._on_kind(request, [g for g in node.gpus if _alike(g, like)]) for like in node.gpus)

    def _on_kind(self, request: PodRequest, gpus: list[Gpu]) -> bool:
        demands = footprint(request.containers, gpus[0]).demands
        shared = any(not demand.whole for demand in demands)
        if gpus[0].mode is SharingMode.MIG or (gpus[0].mode is SharingMode.WHOLE and shared):
            return False
        return any(
            all(self._takes(request, gpu, d) for gpu, d in zip(cards, demands, strict=True))
            and self._linked(request, cards)
            for cards in permutations(gpus, len(demands))
        )

    def _takes(self, request: PodRequest, gpu: Gpu, demand: GpuDemand) -> bool:
        if not _serves(gpu.policy, request):
            return False
        if gpu.state is not GpuState.OK or request.requirements.refuse("", gpu) is not None:
            return False
        others = [other for other, _, _ in self.on_card(gpu.uuid)]
        if any(_apart(request.locality, other.locality) for other in others):
            return False
        label = request.locality.affinity
        if label is not None:
            same = {u for r, g in self.pods.values() if r.locality.affinity == label for u in g.gpus}
            if same and gpu.uuid not in same:
                return False
        milli, mib = self.free(gpu)
        return milli >= demand.milli and mib >= demand.mib and not (demand.whole and others)

    @staticmethod
    def _linked(request: PodRequest, cards: tuple[Gpu, ...]) -> bool:
        wants = request.requirements
        if wants.numa and len({card.numa for card in cards}) > 1:
            return False
        return not wants.nvlink or all(a is b or b.uuid in a.links for a in cards for b in cards)


def _alike(a: Gpu, b: Gpu) -> bool:
    def kind(gpu: Gpu) -> tuple[object, ...]:
        return gpu.model, gpu.mib, gpu.milli, gpu.reserved, gpu.capability, gpu.ecc, gpu.mode

    return kind(a) == kind(b)


def _serves(policy: SharePolicy, request: PodRequest) -> bool:
    shares = [each.share for each in request.containers if each.share is not None]
    if all(share.whole for share in shares):
        return True
    if request.policy is not None and (request.policy is SharePolicy.EQUAL) != (policy is SharePolicy.EQUAL):
        return False
    return policy is not SharePolicy.FIXED or all(share.milli != 0 for share in shares)


def _apart(ours: AffinityLabels, theirs: AffinityLabels) -> bool:
    same = ours.anti_affinity is not None and ours.anti_affinity == theirs.anti_affinity
    return same or ours.exclusion != theirs.exclusion
