"""The answer to a request: a grant that names cards and amounts, or the reasons why there is none."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from milligpu.model.qos import Policy
from milligpu.model.reasons import RESOLVABLE, Reason, Refusal
from milligpu.model.units import Mib, Milli


@dataclass(frozen=True, slots=True)
class GpuShare:
    """One container's share of one card; a whole card has no numbers, because nothing limits it."""

    gpu: str
    milli: Milli = Milli(0)
    mib: Mib = Mib(0)
    limit: Milli = Milli(0)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """Which pod may use how much of which cards; written once, with the binding, by the scheduler."""

    uid: str
    node: str
    containers: Mapping[str, tuple[GpuShare, ...]]
    policy: Policy = Policy.FIXED
    priority: int = 0
    generation: int = 1
    """Counts up when a running pod is resized."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Every card it touches, each once, in the order of the containers."""
        return tuple(dict.fromkeys(share.gpu for shares in self.containers.values() for share in shares))


@dataclass(frozen=True, slots=True)
class NoFit:
    """Why nothing fits now, place by place, and the largest smaller request that would."""

    refusals: tuple[Refusal, ...]
    """For each node that was looked at its cards' reasons, or one of the node's own."""
    nodes: int
    """How many nodes were looked at."""
    nearest: str = ""
    """What would fit now, as a person would ask for it; empty when nothing would."""

    @property
    def hopeless(self) -> bool:
        """Whether waiting cannot help: no place would fit even when everybody else had gone."""
        return not any(refusal.reason in RESOLVABLE for refusal in self.refusals)

    def summary(self) -> str:
        """One line for an event: how many nodes, each main reason with its best number, and what to try.

        A node counts once: under its own reason if it has one, else under that of the card that came nearest.
        Reasons that pass by themselves come before those that do not.
        """
        nearest: dict[str, Refusal] = {}
        for refusal in self.refusals:
            held = nearest.get(refusal.node)
            if held is None or _nearness(refusal) > _nearness(held):
                nearest[refusal.node] = refusal
        counts = Counter(refusal.reason for refusal in nearest.values())
        parts = [self._part(reason, count, nearest) for reason, count in counts.most_common()]
        text = f"0/{self.nodes} nodes: {', '.join(parts) or Reason.NO_GPU}"
        return f"{text}; try {self.nearest}" if self.nearest else text

    @staticmethod
    def _part(reason: Reason, count: int, nearest: Mapping[str, Refusal]) -> str:
        same = [refusal for refusal in nearest.values() if refusal.reason is reason]
        best = max(same, key=lambda refusal: refusal.best)
        numbers = f" (best: {best.where} {best.best} of {best.wanted})" if best.wanted else ""
        return f"{count} {reason}{numbers}"


def _nearness(refusal: Refusal) -> tuple[bool, bool, float]:
    ratio = refusal.best / refusal.wanted if refusal.wanted else 0.0
    return not refusal.gpu, refusal.reason in RESOLVABLE, ratio
