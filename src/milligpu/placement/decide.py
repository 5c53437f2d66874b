"""Choose the tightest GPUs that fit, or say of every card why it does not."""

from collections.abc import Iterable
from dataclasses import dataclass

from milligpu.model.footprint import Demand, Footprint, footprint
from milligpu.model.gpu import Gpu, Mode, Node, State
from milligpu.model.grant import GpuShare, Grant, NoFit
from milligpu.model.reasons import Reason, Refusal
from milligpu.model.request import PodRequest
from milligpu.model.units import Mib, Milli, show_milli


@dataclass(slots=True)
class Card:
    """One card and what is left of it."""

    gpu: Gpu
    milli_free: Milli
    mib_free: Mib


class Books:
    """What is free on every node; `place` reads it, `hold` changes it."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {
            node.name: [Card(gpu, Milli(gpu.milli - gpu.reserved), gpu.mib) for gpu in node.gpus] for node in nodes
        }

    def place(self, request: PodRequest) -> Grant | NoFit:
        """Decide where the pod goes: the node whose cards are left fullest; ties go to the first."""
        refusals: list[Refusal] = []
        best: tuple[tuple[int, int], str, Footprint, list[Card]] | None = None
        for name, cards in self.nodes.items():
            found = _fit(request, name, cards)
            if isinstance(found, list):
                refusals += found
                continue
            need, chosen = found
            left = sum(card.milli_free for card in chosen) - sum(demand.milli for demand in need.demands)
            rank = (left, sum(card.mib_free for card in chosen))
            if best is None or rank < best[0]:
                best = rank, name, need, chosen
        if best is None:
            return NoFit(tuple(refusals), len(self.nodes), self._nearest(refusals))
        _, node, need, chosen = best
        return Grant(
            request.pod.uid,
            node,
            {
                container: tuple(
                    GpuShare(chosen[number].gpu.uuid, whole=True)
                    if part.whole
                    else GpuShare(chosen[number].gpu.uuid, part.milli, part.mib, part.limit)
                    for number, part in parts
                )
                for container, parts in need.slices.items()
            },
            request.policy or chosen[0].gpu.policy,
            request.priority,
        )

    def hold(self, request: PodRequest, grant: Grant) -> None:
        """Take a decided request off the books."""
        cards = {card.gpu.uuid: card for card in self.nodes[grant.node]}
        touched = [cards[uuid] for uuid in grant.gpus]
        need = footprint(request.containers, touched[0].gpu, request.policy)
        numbers = {
            number: share.gpu
            for name, parts in need.slices.items()
            for (number, _), share in zip(parts, grant.containers[name], strict=True)
        }
        for number, demand in enumerate(need.demands):
            card = cards[numbers[number]]
            card.milli_free = Milli(card.milli_free - (card.milli_free if demand.whole else demand.milli))
            card.mib_free = Mib(card.mib_free - (card.mib_free if demand.whole else demand.mib))

    @staticmethod
    def _nearest(refusals: list[Refusal]) -> str:
        free = max((r.best for r in refusals if r.reason is Reason.INSUFFICIENT_CORE), default=0)
        return f"{show_milli(free)} GPU" if free else ""


def _fit(request: PodRequest, node: str, cards: list[Card]) -> tuple[Footprint, list[Card]] | list[Refusal]:
    if not cards:
        return [Refusal(Reason.NO_GPU, node)]
    need = footprint(request.containers, cards[0].gpu, request.policy)
    chosen: list[Card] = []
    refusals: list[Refusal] = []
    free = sorted(cards, key=lambda card: (card.milli_free, card.mib_free))
    for demand in need.demands:
        for card in free:
            refusal = None if card in chosen else _refuse(request, node, card, demand)
            if card not in chosen and refusal is None:
                chosen.append(card)
                break
            if refusal is not None:
                refusals.append(refusal)
        else:
            return refusals or [Refusal(Reason.INSUFFICIENT_GPUS, node, "", len(need.demands), len(chosen))]
    return need, chosen


def _refuse(request: PodRequest, node: str, card: Card, demand: Demand) -> Refusal | None:
    gpu = card.gpu

    def no(reason: Reason, wanted: int = 0, best: int = 0) -> Refusal:
        return Refusal(reason, node, gpu.uuid, wanted, best)

    if gpu.state is not State.OK:
        return no(Reason.SICK if gpu.state is State.SICK else Reason.CORDONED)
    if gpu.mode is Mode.MIG or (gpu.mode is Mode.WHOLE and not demand.whole):
        return no(Reason.MODE_MISMATCH)
    unmet = request.requirements.refuse(node, gpu)
    if unmet is not None:
        return unmet
    if demand.milli > gpu.milli:
        return no(Reason.TOO_LARGE, demand.milli, gpu.milli)
    milli = gpu.milli if demand.whole else demand.milli
    if card.milli_free < milli:
        return no(Reason.INSUFFICIENT_CORE, milli, card.milli_free)
    if card.mib_free < demand.mib:
        return no(Reason.INSUFFICIENT_MEMORY, demand.mib, card.mib_free)
    return None
