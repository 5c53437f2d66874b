"""What is granted to whom, decided anew from those who live: pure, through `placement`.

A machine has few cards and few sessions. Rebuilding the snapshot costs milliseconds and can never drift.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from milligpu.agent.slots import Slot, back, divide
from milligpu.agent.wish import Wish
from milligpu.model.footprint import Demand
from milligpu.model.gpu import Gpu, Node
from milligpu.model.grant import GpuShare, Grant, NoFit
from milligpu.model.qos import Policy
from milligpu.model.request import ContainerRequest, PodRef, PodRequest
from milligpu.model.requirements import Requirements
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Holding, Snapshot

CONTAINER = "main"
"""A command is a pod of one container."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one session holds."""

    session: str
    grant: Grant

    @property
    def shares(self) -> tuple[GpuShare, ...]:
        """Of each of its GPUs."""
        return self.grant.containers[CONTAINER]


class Books:
    """One machine's GPUs; every question comes with those who hold something now."""

    def __init__(self, machine: str, gpus: Sequence[Gpu], *, settled: bool = False) -> None:
        """`settled`: others are on the cards, too, and their policies are not ours to choose."""
        self.machine = machine
        self._settled = settled
        self.gpus = {gpu.uuid: gpu for gpu in gpus}

    def decide(self, session: str, wish: Wish, held: Sequence[Held]) -> Grant | NoFit:
        """Which GPUs a new session gets beside those that hold something."""
        return self._decide(session, wish, held)

    def hopeless(self, session: str, wish: Wish) -> NoFit | None:
        """Why waiting would not help: it does not fit even when everybody has gone."""
        answer = self._decide(session, wish, ())
        return answer if isinstance(answer, NoFit) else None

    def resize(self, present: Held, wish: Wish, held: Sequence[Held]) -> Grant | NoFit:
        """The same session with another share of the GPUs it is on; nothing moves."""
        others = [each for each in held if each.session != present.session]
        answer = self._decide(present.session, wish, others, present.grant.gpus)
        if isinstance(answer, NoFit):
            return answer
        by_gpu = {share.gpu: share for share in answer.containers[CONTAINER]}
        # A program knows its GPUs by their order.
        shares = tuple(by_gpu[uuid] for uuid in present.grant.gpus)
        return replace(answer, containers={CONTAINER: shares}, generation=present.grant.generation + 1)

    def slots(self, held: Sequence[Held]) -> Mapping[str, dict[str, Slot]]:
        """Each session's slots, by GPU."""
        found: dict[str, dict[str, Slot]] = {each.session: {} for each in held}
        for uuid in self.gpus:
            tenants = [(each.session, share.milli) for each in held for share in each.shares if share.gpu == uuid]
            policy = self._policy(uuid, held, None)
            for session, slot in divide(tenants, policy, back(self.gpus[uuid])).items() if tenants else ():
                found[session][uuid] = slot
        return found

    def _decide(
        self, session: str, wish: Wish, held: Sequence[Held], uuids: tuple[str, ...] | None = None
    ) -> Grant | NoFit:
        gpus = tuple(replace(gpu, policy=self._policy(gpu.uuid, held, wish.policy)) for gpu in self.gpus.values())
        snapshot = Snapshot.of([Node(self.machine, gpus)], map(self._holding, held))
        request = PodRequest(
            PodRef("local", session, session),
            (ContainerRequest(CONTAINER, wish.share),),
            policy=wish.policy,
            priority=wish.priority,
            requirements=Requirements(uuids=uuids),
        )
        return Placer(snapshot).decide(request)

    def _policy(self, uuid: str, held: Iterable[Held], wanted: Policy | None) -> Policy:
        """A card runs the policy of those on it; an empty one runs what the first of them wants."""
        if self._settled:
            return self.gpus[uuid].policy
        present = next((each.grant.policy for each in held if uuid in each.grant.gpus), None)
        return present or wanted or self.gpus[uuid].policy

    def _holding(self, held: Held) -> Holding:
        return Holding(held.session, self.machine, self.demands(held), priority=held.grant.priority)

    def demands(self, held: Held) -> tuple[tuple[str, Demand], ...]:
        """What a session holds, by GPU."""
        return tuple((share.gpu, self._demand(share)) for share in held.shares if share.gpu in self.gpus)

    def _demand(self, share: GpuShare) -> Demand:
        gpu = self.gpus[share.gpu]
        return Demand(gpu.milli, gpu.mib, True) if share.whole else Demand(share.milli, share.mib)
