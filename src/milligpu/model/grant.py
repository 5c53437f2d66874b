"""The answer to a request: a grant that names GPUs and shares, or the reasons why there is none."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milligpu.model.gpu import Gpu
from milligpu.model.policy import DEFAULT_POLICY, SharePolicy
from milligpu.model.reasons import RESOLVABLE, Reason, Refusal
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli


@dataclass(frozen=True, slots=True)
class GpuShare:
    """One container's share of one GPU. The share of a whole GPU may lack numbers: `resolve` has them."""

    gpu: str
    share: Share

    def resolve(self, gpu: Gpu | None) -> Share:
        """Return the share in numbers: a whole GPU is all that `gpu` has. `gpu` is None if it is not known."""
        if self.share.whole and gpu is not None:
            return Share(gpu.milli, gpu.mib, gpu.milli, whole=True)
        return self.share


def whole_gpu(gpu: str) -> GpuShare:
    """Return a whole GPU without numbers, as version 1 of the grant has it."""
    return GpuShare(gpu, Share(Milli(0), Mib(0), Milli(0), whole=True))


@dataclass(frozen=True, slots=True)
class Grant:
    """Which shares of which GPUs a pod may use; the scheduler writes it once, with the binding."""

    uid: str
    node: str
    containers: Mapping[str, tuple[GpuShare, ...]]
    policy: SharePolicy = DEFAULT_POLICY
    """What the request named. Limits already follow from it, and each GPU's own policy decides about its time."""
    priority: int = 0
    generation: int = 1
    """Counts up when a running pod is resized."""
    gpu_class: str | None = None
    """The class that its GPUs were chosen by: the one that the pod names, or a fallback of it."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs, each once, in the order of the containers."""
        return tuple(dict.fromkeys(share.gpu for shares in self.containers.values() for share in shares))


def grant_of_unknown_size(
    uid: str, node: str, named: Iterable[str], present: Iterable[str], container: str = "unknown"
) -> Grant:
    """Return what counts in place of a grant that cannot be read: all of each GPU that it names.

    `present` are the node's GPUs; if the grant names none of them, all of them count as held.
    """
    present = tuple(present)
    held = tuple(gpu for gpu in present if gpu in set(named)) or present
    return Grant(uid, node, {container: tuple(whole_gpu(gpu) for gpu in held)})


@dataclass(frozen=True, slots=True)
class NoFit:
    """Why no GPU fits now, and the largest smaller request that would fit."""

    refusals: tuple[Refusal, ...]
    """For each node that was checked: the reasons of its GPUs, or one of the node itself."""
    nodes: int
    """Number of nodes that were checked."""
    nearest: str = ""
    """A request that would fit now, in words; empty if none would."""

    @property
    def hopeless(self) -> bool:
        """Whether waiting cannot help: no node would fit even if all other pods ended."""
        return not any(refusal.reason in RESOLVABLE for refusal in self.refusals)

    def summary(self) -> str:
        """One line for an event: how many nodes, each main reason with its best number, and what to try.

        A node counts once: with its own reason if it has one, else with that of the GPU that came nearest. Reasons
        that resolve themselves come before those that do not.
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
        if best.amounts:
            return f"{count} {reason} (best: {best.where} has {best.amounts})"
        best = max(same, key=lambda refusal: bool(refusal.message))
        if best.message:
            return f"{count} {reason} ({'' if count == 1 else 'such as '}{best.where}: {best.message})"
        return f"{count} {reason}"


def _nearness(refusal: Refusal) -> tuple[bool, bool, float]:
    ratio = refusal.best / refusal.wanted if refusal.wanted else 0.0
    return not refusal.gpu, refusal.reason in RESOLVABLE, ratio
