"""What holds on the GPUs of a node for some hours: share policy, reserved part and limit, by requirements."""

from collections.abc import Iterable
from dataclasses import dataclass

from milligpu.model.gpu import Gpu
from milligpu.model.policy import SharePolicy
from milligpu.model.requirements import ANY, Requirements
from milligpu.model.units import WHOLE, Milli


@dataclass(frozen=True, slots=True)
class CardRule:
    """Settings for GPUs that meet the requirements; None leaves what the node's agent was started with."""

    gpus: Requirements = ANY
    policy: SharePolicy | None = None
    reserved: Milli | None = None
    """Thousandths of the GPU that are reserved for sessions."""
    limit: Milli | None = None
    """The most compute that one tenant may use, in thousandths of the GPU; a share is never cut."""

    def __str__(self) -> str:
        """The settings as people read them, such as `policy equal, limit 500`."""
        found = [f"policy {self.policy}"] if self.policy else []
        found += [f"reserved {self.reserved}"] if self.reserved is not None else []
        found += [f"limit {self.limit}"] if self.limit is not None else []
        return ", ".join(found) or "as the agent was started"


NO_RULE = CardRule()


def rule_of(rules: Iterable[CardRule], node: str, gpu: Gpu) -> CardRule:
    """Return the first rule that is for this GPU."""
    return next((rule for rule in rules if rule.gpus.refuse(node, gpu) is None), NO_RULE)


def reserved_by(rule: CardRule, gpu: Gpu) -> Milli:
    """Return the reserved part of a GPU in milli of a card, as `Gpu.reserved` counts it."""
    return gpu.reserved if rule.reserved is None else Milli(gpu.milli * rule.reserved // WHOLE)


def limit_by(rule: CardRule, gpu: Gpu) -> Milli:
    """Return the limit of a GPU in milli of a card, as `Gpu.limit` counts it."""
    return WHOLE if rule.limit is None else Milli(max(1, gpu.milli * rule.limit // WHOLE))
